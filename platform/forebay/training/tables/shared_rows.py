"""Rows of a table that all ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from forebay.training.collectives.tensor_collectives import TensorCollectives
from forebay.training.tables.exchange.pending_lookup import PendingLookup, PendingLookups, RoutedIds
from forebay.training.tables.layout import TableLayout
from forebay.training.tables.lookup.bad_ids import BeyondTable, raise_on_all_ranks
from forebay.training.tables.owned_rows import OwnedRows, TableFacts
from forebay.training.tables.placement import PlacementName
from forebay.training.tables.wire import WireName

_REFUSED = -1


@dataclass(slots=True)
class TableUse:
    """Counts of one rank since they were read.

    At first, since the start of its process.

    `lookups` are ids, `unique` the rows fetched for them, and `sent_bytes` what this rank sent to others for them.
    `touched` are rows of this rank that a gradient changed, and `bad` are ids beyond the table. Of an open vocabulary,
    `admitted` are ids of this rank that got a row, and `evicted` those that lost it. `shared` are answers of this rank
    for ids that have no row. `last_ids` are the ids of the last lookup of a training model, until they are read.
    `calls` are lookups with a gradient, and `own_calls` their sum if one together with k - 1 other tables counts 1/k.
    `trained` are the unique rows of these: an evaluation does not tell how a step uses a table.
    """

    steps: int = 0
    lookups: int = 0
    unique: int = 0
    touched: int = 0
    bad: int = 0
    sent_bytes: int = 0
    admitted: int = 0
    shared: int = 0
    evicted: int = 0
    calls: int = 0
    own_calls: float = 0.0
    trained: int = 0
    last_ids: Tensor | None = None


class SharedRows(PendingLookups[tuple[Tensor, Tensor]]):
    """One table in one world.

    All ranks call every method alike.

    `placement` says who holds a row: "rows": one rank, by its shard. "table": one rank holds all. "replicate": every
    rank holds all, and gradients are reduced as a dense tensor.
    """

    def __init__(
        self, tensors: TensorCollectives, placement: PlacementName, owned_of: OwnedOf, *, home: int, wire: WireName
    ) -> None:
        super().__init__()
        self.tensors, self.wire = tensors, wire
        self.placement = placement
        facts = owned_of((0, 0)).facts
        self._layout = TableLayout(facts.rows)
        self._bounds = _bounds(self._layout, placement, tensors.world_size, home)
        self.saved_span = self._bounds[tensors.rank], self._bounds[tensors.rank + 1]
        """First position, and the one after the last, of the rows that this rank saves: each row is saved once."""
        self.owned = owned_of((0, facts.rows) if placement == "replicate" else self.saved_span)
        self._edges = torch.tensor(self._bounds[1:-1])
        self._refused: BeyondTable | None = None
        self.use = TableUse()

    @property
    def rank(self) -> int:
        return self.tensors.rank

    @property
    def facts(self) -> TableFacts:
        return self.owned.facts

    @property
    def is_exchanged(self) -> bool:
        """Whether ranks request rows from each other."""
        return self.tensors.world_size > 1 and self.placement != "replicate"

    def refuse(self, ids: BeyondTable) -> None:
        """Make the next lookup raise `BadJob` on all ranks.

        They learn of it in an exchange of their own.

        Ranks do not ask each other for replicas. If they are trained, `sum_replicas` raises it.
        """
        self._refused = ids
        if self.tensors.world_size == 1:
            self._raise_refused(torch.device("cpu"))

    def route(self, ids: Tensor) -> RoutedIds:
        """Return the unique positions of valid ids [n].

        With the ranks that own them.
        """
        unique, inverse = torch.unique(self._layout.positions(ids), return_inverse=True)
        self.use.lookups += len(ids)
        self.use.unique += len(unique)
        if not self.is_exchanged:
            return RoutedIds(unique, (), inverse)
        if self._refused is not None:  # Every rank is asked for a position that no table has.
            every = [1] * self.tensors.world_size
            return RoutedIds(unique.new_full((len(every),), _REFUSED), every, inverse)
        edges = torch.searchsorted(unique, self._edges.to(unique)).tolist()
        send = [stop - start for start, stop in zip([0, *edges], [*edges, len(unique)], strict=True)]
        return RoutedIds(unique, send, inverse)

    def answer(self, asked: Tensor, *, is_trained: bool) -> Tensor:
        """Return this rank's rows at positions [n]: float32 [n, dim].

        Raises `BadJob` on all ranks if one of them refuses its ids.
        """
        if self.is_exchanged:
            self._raise_if(bool((asked < 0).any()), asked.device)
        elif not is_trained and self.tensors.world_size > 1:
            refused = self.tensors.all_reduce(self._refusals(asked.device))
            self._raise_if(bool(refused), asked.device)
        return self.owned.read(asked.long() - self.owned.begin)

    def sum_received(self, pending: Sequence[PendingLookup], gradients: Sequence[Tensor]) -> None:
        """Sum the gradients of lookups as owners got them.

        Each is float32 [n, dim] for `asked`.
        """
        self._due = self._summed(pending, gradients)

    def dense_gradient(self) -> Tensor:
        """Return this rank's dense gradient, for `sum_replicas`.

        float32 [rows + 1, dim].

        Forgets the lookups since the last update. One more row tells whether this rank has looked up ids beyond the
        table.
        """
        rows, gradient = self._sum_own()
        dense = gradient.new_zeros(self.facts.rows + 1, self.facts.dim).index_add_(0, rows, gradient)
        dense[-1] = self._refusals(dense.device)
        return dense

    def sum_replicas(self, dense: Tensor) -> None:
        """Take the sum of all ranks' `dense_gradient`.

        Raises `BadJob` on all ranks if one of them refuses its ids.
        """
        size = self.tensors.world_size
        self.use.sent_bytes += 8 * dense.numel() * (size - 1) // size
        self._raise_if(bool(dense[-1].any()), dense.device)
        dense = dense[:-1]
        self._due = _without_zeros(torch.arange(len(dense), device=dense.device), dense)

    @torch.no_grad()
    def reduce(self) -> tuple[Tensor, Tensor]:
        """Return the changed rows of this rank and their gradient.

        Of all lookups since the last update.

        That is [n], counted from the first own row, and float32 [n, dim]: the mean over ranks of their sums. In a world
        of several ranks, `reduce_together` comes first.
        """
        if self._due is None:
            assert self.tensors.world_size == 1, "reduced together with other tables"
            self._due = self._sum_own()
        return self._due

    def squared_norm(self) -> Tensor:
        """Return this rank's squared gradient norm, a float64 scalar."""
        square = self.reduce()[1].double().square().sum().cpu()
        # Every rank has all of a replicated gradient.
        return square if self.is_exchanged else square / self.tensors.world_size

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradient by a scalar."""
        rows, gradient = self.reduce()
        self._due = rows, gradient * factor.to(gradient.device)

    @torch.no_grad()
    def update(self, step: int, lr: float) -> None:
        """Make optimizer step number `step`, from 1."""
        rows, gradient = self.reduce()
        self.owned.update(rows, gradient, step, lr)
        self.use.steps += 1
        self.use.touched += len(rows)
        self._due = None

    def take(self, ids: Tensor, _seen: Tensor, tensors: Mapping[str, Tensor]) -> int:
        """Load rows of an earlier run with any ids [n].

        Returns how many of them this rank saves.
        """
        ids, tensors = _chosen((ids >= 0) & (ids < self.facts.rows), ids, tensors)
        positions = self._layout.positions(ids.clone()).long()
        begin, end = self.saved_span
        saved = int(((positions >= begin) & (positions < end)).sum())
        own = (positions >= self.owned.begin) & (positions < self.owned.end)
        positions, tensors = _chosen(own, positions, tensors)
        for name in tensors.keys() & self.owned.tensors.keys():
            target = self.owned.tensors[name]
            target.index_copy_(0, (positions - self.owned.begin).to(target.device), tensors[name].to(target.device))
        return saved

    def weight(self) -> Tensor:
        """Return the newest values of this rank's rows."""
        return self.owned.caught_up()

    def id_of(self, row: int) -> int:
        """Return the id of a row of `weight`."""
        begin = self.owned.begin + row
        return int(self._layout.ids(begin, begin + 1)[0])

    def _sum_own(self) -> tuple[Tensor, Tensor]:
        """Sum gradients of lookups of this rank's own rows."""
        pending = self.pop_pending()
        return self._summed(pending, [each.gradient for each in pending])

    def _summed(self, pending: Sequence[PendingLookup], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Sum gradients of equal rows in a fixed order.

        By lookup, and within a lookup by rank.

        Divide by their number.
        """
        weight = self.owned.tensors["weight"]
        rows = [each.asked.long() - self.owned.begin for each in pending]
        every = torch.cat([weight.new_empty(0, dtype=torch.int64), *rows])
        found, inverse = torch.unique(every, return_inverse=True)
        total = weight.new_zeros(len(found), self.facts.dim)
        total.index_add_(0, inverse, torch.cat([weight.new_empty(0, self.facts.dim), *gradients]))
        return _without_zeros(found, total.div_(self.tensors.world_size))

    def _refusals(self, device: torch.device) -> Tensor:
        return torch.tensor([float(self._refused is not None)], device=device)

    def _raise_if(self, is_refused: bool, device: torch.device) -> None:
        if is_refused:
            self._raise_refused(device)

    def _raise_refused(self, device: torch.device) -> NoReturn:
        refused, self._refused = self._refused, None
        raise_on_all_ranks(self.tensors, self.facts, refused, device)


OwnedOf = Callable[[tuple[int, int]], OwnedRows]
"""Function that returns the rows between two positions of a table."""


def _bounds(layout: TableLayout, placement: PlacementName, world_size: int, home: int) -> tuple[int, ...]:
    """First position of each owner, then the row count."""
    bounds = layout.bounds(world_size)
    match placement:
        case "rows":
            return bounds
        case "table":
            return tuple(0 if rank <= home % world_size else layout.rows for rank in range(world_size + 1))
        case "replicate":
            return bounds


def _chosen(mask: Tensor, ids: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
    return ids[mask], {name: values[mask] for name, values in tensors.items()}


def _without_zeros(rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out rows with zero gradient.

    Dummy rows, and untouched rows of a dense reduction.
    """
    touched = gradient.any(dim=1)
    return (rows, gradient) if bool(touched.all()) else (rows[touched], gradient[touched])
