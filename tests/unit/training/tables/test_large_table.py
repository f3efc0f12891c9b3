"""A table that one process may not hold trains on four."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from forebay.training.collectives.collective import Collective
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.optimizers import RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Table

DIM, ROWS = 64, 4_000_000
SHARE = ROWS * (4 * DIM + 4) // 4
LIMIT = int(1.1 * SHARE)


class WideTable(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table, self.out = Table(rows, DIM), nn.Linear(DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids))


def data_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def train_within(collective: Collective, rows: int, limit: int | None) -> list[float] | str:
    """Losses of five steps, with at most `limit` bytes more than this process has. Its error, if it needs more."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + limit, before[1]))
    try:
        options = StrategyOptions(reduction="mean", plan=None, seed=1)  # type: ignore[arg-type]
        model: nn.Module = WideTable(rows)
        tables = Tables(RowWiseAdagrad(lr=0.05), placement="rows")
        strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, tables, collective, options)
        model, optimizer = strategy.prepare(model, partial(SGD, lr=0.01))
        wrapped, losses = strategy.wrap(model), []
        for step in range(5):
            ids = torch.randint(rows, (256,), generator=torch.Generator().manual_seed(step))
            loss = (wrapped(ids) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    except (MemoryError, RuntimeError) as error:
        return str(error)
    else:
        return losses
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.variation("it takes 1 GB of memory")
def test_a_table_beyond_the_limit_of_a_process_trains_on_four(ranks: Callable[..., list[Any]]) -> None:
    """The table is 3.6 times the memory that a process may take, and its share leaves 10 % for everything else."""
    assert 4 * SHARE / LIMIT > 3.6
    ranks(4, train_within, 1000, None)  # Libraries and threads are not part of the limit.
    ranks(1, train_within, 1000, None)
    assert "memory" in ranks(1, train_within, ROWS, LIMIT)[0]
    found = ranks(4, train_within, ROWS, LIMIT)
    assert all(isinstance(each, list) and len(each) == 5 for each in found), found
