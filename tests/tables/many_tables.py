"""Training of a model with several tables, and the number of its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from forebay.training.collectives.collective import Collective
from forebay.training.collectives.tensor_collectives import TensorCollectives
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.tables.exchange.gradients import sum_dense
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import LazyAdam
from forebay.training.tables.options import Tables
from forebay.training.tables.placement import PlacementName
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.table import Lookup, Table, look_up
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.tables.vocabulary.open_rows import OpenRows
from forebay.training.tables.wire import WireName, from_wire, to_wire

MANY_SEED, ROWS, BATCH = 11, 200, 16
PLACEMENTS: Mapping[int, PlacementName] = {1: "table", 3: "replicate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRun:
    """Run of `steps` steps of a model with `tables` tables.

    `looks_up_together` uses one `look_up` for all of them. `reduce` sums the gradients of all before each step.
    Tables that `placements` does not name are placed as "rows".
    """

    tables: int
    steps: int = 4
    looks_up_together: bool = True
    wire: WireName = "float32"
    placements: Mapping[int, PlacementName] = field(default_factory=lambda: dict(PLACEMENTS))
    reduce: Callable[[Sequence[SharedRows | OpenRows]], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyResult:
    """Losses, tensors and counts of tables of one rank, and its exchanges in the forward pass and update of each step.

    `sums` are the messages of each step that are all-reduces.
    `uses` has lookups, unique rows, bytes sent and rows touched of each table.
    """

    losses: list[float]
    tensors: dict[str, Tensor]
    uses: list[tuple[int, int, int, int]]
    forward: list[int]
    update: list[int]
    sums: list[int]


class ManyTables(nn.Module):
    """Sum of rows of tables of 1, 2, 3, ... numbers a row. The third table is open, and the first looked up twice.

    Every second lookup is one of bags.
    """

    def __init__(self, count: int, *, looks_up_together: bool) -> None:
        super().__init__()
        self._looks_up_together = looks_up_together
        self.tables = nn.ModuleList(
            Table(ROWS, dim, scale=0.5, admission=Admission(min_count=2) if dim == 3 else None)
            for dim in range(1, count + 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return a number for each row of `ids` [n, tables + 1]."""
        lookups = [
            Lookup(table, column, torch.ones_like(column), pool="sum") if number % 2 else Lookup(table, column)
            for number, (table, column) in enumerate(zip([*self.tables, self.tables[0]], ids.T, strict=True))
        ]
        if self._looks_up_together:
            found = look_up(*lookups)
        else:
            found = [each.table(each.ids, each.lengths, pool=each.pool) for each in lookups]
        return torch.cat([each.square() for each in found], dim=1).sum(1)


class CountedExchanges:
    """`TensorCollectives` that counts exchanges and all-reduces."""

    def __init__(self, inner: TensorCollectives) -> None:
        self._inner, self.count, self.sums = inner, 0, 0

    def exchange(self, *args: Any) -> tuple[Tensor, Sequence[int]]:
        self.count += 1
        return self._inner.exchange(*args)

    def all_reduce(self, values: Tensor) -> Tensor:
        self.sums += 1
        return self._inner.all_reduce(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CountedCollective:
    """`Collective` whose exchanges of tensors are counted."""

    def __init__(self, inner: Collective) -> None:
        self._inner, self.tensors = inner, CountedExchanges(inner.tensor_collectives())

    def tensor_collectives(self) -> TensorCollectives:
        return self.tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def train_many(inner: Collective, run: ManyRun) -> ManyResult:
    """Train on this rank, with other ids on each one. Every second step clips the gradient."""
    collective = CountedCollective(inner)
    model = ManyTables(run.tables, looks_up_together=run.looks_up_together)
    options = Tables(
        LazyAdam(lr=0.1),
        placement={f"tables.{number}": run.placements.get(number, "rows") for number in range(run.tables)},
        wire=run.wire,
    )
    tables = ModelTables(model, options, collective, seed=MANY_SEED)
    losses, counts = [], [0]
    sums = list[int]()
    for step in range(run.steps):
        generator = torch.Generator().manual_seed(100 * step + inner.world.rank)
        ids = torch.randint(ROWS, (BATCH, run.tables + 1), generator=generator) ** 2 // ROWS
        loss = model(ids).mean()
        losses.append(loss.item())
        counts.append(collective.tensors.count)
        loss.backward()
        if run.reduce is not None:
            run.reduce(list(tables.shared.values()))
        if step % 2:
            tables.scale(0.1 / tables.squared_norm().sqrt())
        tables.step()
        counts.append(collective.tensors.count)
        sums.append(collective.tensors.sums - sum(sums))
    between = [after - before for before, after in pairwise(counts)]
    uses = [shared.use for shared in tables.shared.values()]
    return ManyResult(
        losses=losses,
        tensors=_tensors_of(tables),
        uses=[(use.lookups, use.unique, use.sent_bytes, use.touched) for use in uses],
        forward=between[::2],
        update=between[1::2],
        sums=sums,
    )


def assert_bit_equal(found: ManyResult, wanted: ManyResult) -> None:
    """Assert that two runs trained the same on a rank, and counted the same."""
    assert (found.losses, found.uses) == (wanted.losses, wanted.uses)
    assert found.tensors.keys() == wanted.tensors.keys()
    assert all(torch.equal(found.tensors[name], values) for name, values in wanted.tensors.items())


@torch.no_grad()
def reduce_apart(tables: Sequence[SharedRows | OpenRows]) -> None:
    """Sum the gradients with one exchange for each lookup of each table.

    Dense ones have one message, in which they round as in `reduce_together`.
    """
    for shared in tables:
        if shared.is_exchanged:
            pending, gradients = shared.pop_pending(), []
            for each in pending:
                sent = to_wire(each.gradient, shared.wire)
                received, _ = shared.tensors.exchange(sent, each.send, each.receive)
                gradients.append(from_wire(received, shared.facts.dim, shared.wire))
            shared.sum_received(pending, gradients)
    sum_dense([shared for shared in tables if shared.tensors.world_size > 1])


def _tensors_of(tables: ModelTables) -> dict[str, Tensor]:
    """Return the tensors of this rank's rows and their state."""
    return {
        f"{name}.{key}": values.values if isinstance(values, FlatPart) else values
        for name, parts in tables.state_dict()["rows"].items()
        for key, values in parts.items()
    }
