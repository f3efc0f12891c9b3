"""Ways to train a table: dense under DDP, on a parameter server, and as `fb.Table`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tests.tables.many_tables import reduce_apart
from torch import Tensor, nn
from torch.optim import SGD

from bench.tables.setting import TableSetting
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.tensor_collectives import TensorCollectives
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.optimizers import RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Lookup, Table, look_up

SERVER = "server"
_RATE = 0.01
FOREBAY = {
    "rows": Tables(RowWiseAdagrad(lr=_RATE), placement="rows"),
    "bfloat16": Tables(RowWiseAdagrad(lr=_RATE), placement="rows", wire="bfloat16"),
    "float16": Tables(RowWiseAdagrad(lr=_RATE), placement="rows", wire="float16"),
    "replicate": Tables(RowWiseAdagrad(lr=_RATE), placement="replicate"),
    "one owner": Tables(RowWiseAdagrad(lr=_RATE), placement="table"),
}
WAYS = ("dense", SERVER, *FOREBAY)
APART, GRADIENTS_TOGETHER, TOGETHER = "one by one", "gradients together", "all together"
SEVERAL_TABLES = (APART, GRADIENTS_TOGETHER, TOGETHER)
"""Ways to send lookups and gradients of a model with a table for each column of ids."""

Step = Callable[[Tensor], float]
"""Function that trains with the ids of this rank, and returns its loss."""


def ranks_of(setting: TableSetting, way: str) -> int:
    """Return the number of processes: a parameter server is one more than the workers."""
    return setting.workers + (way == SERVER)


class PooledRow(nn.Module):
    """Regression on the sum of the rows of all ids of a row."""

    def __init__(self, table: nn.Module, dim: int) -> None:
        super().__init__()
        self.table, self.out = table, nn.Linear(dim, 1)

    def forward(self, ids: Tensor) -> Tensor:
        pooled = self.table(ids, pool="sum") if isinstance(self.table, Table) else self.table(ids)
        found: Tensor = self.out(pooled)[:, 0]
        return found


class RowOfEachTable(nn.Module):
    """Regression on the sum of the rows of all tables, one for each column of ids."""

    def __init__(self, setting: TableSetting, *, looks_up_together: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(Table(setting.rows, setting.dim) for _ in range(setting.columns))
        self.out = nn.Linear(setting.dim, 1)
        self._looks_up_together = looks_up_together

    def forward(self, ids: Tensor) -> Tensor:
        if self._looks_up_together:
            rows = look_up(*(Lookup(table, column) for table, column in zip(self.tables, ids.T, strict=True)))
        else:
            rows = [table(column) for table, column in zip(self.tables, ids.T, strict=True)]
        found: Tensor = self.out(torch.stack(rows).sum(0))[:, 0]
        return found


class ServerTable(nn.Module):
    """Table whose rows the last rank holds. Workers get a row for each lookup, and send a gradient for each back."""

    def __init__(self, setting: TableSetting, tensors: TensorCollectives) -> None:
        super().__init__()
        self._tensors = tensors
        self._is_server = tensors.rank == tensors.world_size - 1
        rows = setting.rows if self._is_server else 0
        self._weight = torch.empty(rows, setting.dim).uniform_(-0.05, 0.05)
        self._asked: tuple[Tensor, list[int], list[int]] | None = None
        self._rows: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """Return the sums of the rows of ids [n, k]."""
        send = [0] * (self._tensors.world_size - 1) + [ids.numel()]
        wanted, receive = self._tensors.exchange(ids.reshape(-1), send)
        rows, _ = self._tensors.exchange(self._weight[wanted], receive, send)
        self._rows = rows.requires_grad_()
        self._asked = wanted, send, list(receive)
        return rows.view(*ids.shape, rows.shape[1]).sum(1)

    @torch.no_grad()
    def update(self) -> None:
        """Send the gradients to the server, which changes its rows."""
        assert self._rows is not None, "forward() comes first"
        assert self._asked is not None, "set beside the rows"
        wanted, send, receive = self._asked
        gradient = torch.zeros_like(self._rows) if self._rows.grad is None else self._rows.grad
        gradients, _ = self._tensors.exchange(gradient, send, receive)
        if self._is_server:
            self._weight.index_add_(0, wanted, gradients, alpha=-_RATE)


def build(way: str, setting: TableSetting, collective: Collective) -> tuple[Step, nn.Module]:
    """Return the step of a way on this rank, and its model."""
    torch.manual_seed(0)
    if way in SEVERAL_TABLES:
        return _build_several(way, setting, collective)
    table = _table(way, setting, collective)
    model = PooledRow(table, setting.dim)
    options = StrategyOptions(reduction="mean", plan=None, seed=1)  # type: ignore[arg-type]
    strategy: Any = TorchDataParallel(collective, options)
    if way in FOREBAY:
        strategy = with_tables(strategy, "ddp", model, FOREBAY[way], collective, options)
    trained, optimizer = strategy.prepare(model, partial(SGD, lr=_RATE))
    wrapped = strategy.wrap(trained)

    def step(ids: Tensor) -> float:
        loss = (wrapped(ids) - 1).square().sum() * setting.workers / setting.batch
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if isinstance(table, ServerTable):
            table.update()
        return float(loss)

    return step, wrapped


def _build_several(way: str, setting: TableSetting, collective: Collective) -> tuple[Step, nn.Module]:
    model = RowOfEachTable(setting, looks_up_together=way == TOGETHER)
    options = StrategyOptions(reduction="mean", plan=None, seed=1)  # type: ignore[arg-type]
    inner = TorchDataParallel(collective, options)
    strategy = with_tables(inner, "ddp", model, FOREBAY["rows"], collective, options)
    trained, optimizer = strategy.prepare(model, partial(SGD, lr=_RATE))
    wrapped = strategy.wrap(trained)

    def step(ids: Tensor) -> float:
        loss = (wrapped(ids) - 1).square().sum() * setting.workers / setting.batch
        loss.backward()
        if way == APART:
            reduce_apart([each.shared for each in model.tables])
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step, wrapped


def _table(way: str, setting: TableSetting, collective: Collective) -> nn.Module:
    if way == SERVER:
        return ServerTable(setting, collective.tensor_collectives())
    if way == "dense":
        return nn.EmbeddingBag(
            setting.rows, setting.dim, mode="sum", _weight=torch.empty(setting.rows, setting.dim).uniform_(-0.05, 0.05)
        )
    return Table(setting.rows, setting.dim)
