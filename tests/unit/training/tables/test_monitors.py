"""Monitors name table, row and feature of what is wrong in the rows of a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from forebay.training.collectives.collective import Collective
from forebay.training.monitors.embedding_norms import EVERY, EmbeddingNorms
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.state.setup import TrainSetup
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.optimizers import RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission

LIMIT = 5.0


class Factors(nn.Module):
    """Sum of the rows of two features of one table, one of them times a factor for each row of the batch."""

    def __init__(self, admission: Admission | None) -> None:
        super().__init__()
        self.sites = Table(640, 3, admission=admission)
        self.out = nn.Linear(3, 1)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        rows = self.sites(batch["ids"][:, 0]) * batch["factor"].unsqueeze(1)
        return (rows + self.sites(batch["seen"])).sum()


def verdicts(collective: Collective, admission: Admission | None, factors: list[float]) -> tuple[str, str]:
    """Train a step on rows 66 and 99 with `factors`. Returns what this rank's monitors say of lengths, and of NaN."""
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type] # only "exact" reads it
    model, tables = Factors(admission), Tables(RowSGD(lr=1.0), placement="rows")
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, tables, collective, options)
    trained, optimizer = strategy.prepare(model, partial(SGD, lr=0.1))
    parts = strategy.local_parts()
    size = collective.world.size
    setup = TrainSetup(model=trained, optimizer=optimizer, device=collective.device, world_size=size, parts=parts)
    norms, guard = EmbeddingNorms(LIMIT).attach(setup), NanGuard().attach(setup)
    ids = torch.tensor([[66, 1], [99, 2]])
    trained({"ids": ids, "seen": torch.tensor([5, 6]), "factor": torch.tensor(factors)}).backward()
    optimizer.step()
    for step in range(1, EVERY + 1):
        norms.step(step, {})
        guard.step(step, {})
    return norms.verdict().reason, guard.verdict().reason


@pytest.mark.parametrize("admission", [None, Admission()])
def test_monitors_of_the_owner_name_table_row_and_feature(
    ranks: Callable[..., list[Any]], admission: Admission | None
) -> None:
    where = "'sites' (feature 'ids', column 0 and feature 'seen')"
    long = [norms for norms, _ in ranks(2, verdicts, admission, [7.0, 0.1])]
    told = [words for words in long if words]
    assert len(told) == 1, "one rank has the row"
    assert f"rows of {where} are longer than limit=5, the longest is row 66 with" in told[0]
    bad = [words for _, words in ranks(2, verdicts, admission, [0.1, float("inf")]) if words]
    assert len(bad) == 1
    assert f"NanGuard: row 99 of table {where} not finite" in bad[0]
