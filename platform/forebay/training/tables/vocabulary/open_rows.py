"""Rows of an open table that all ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.tensor_collectives import TensorCollectives
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.tables.exchange.pending_lookup import PendingLookup, PendingLookups, RoutedIds
from forebay.training.tables.layout import NUM_SHARDS
from forebay.training.tables.owned_rows import WEIGHT, OwnedRows, TableFacts
from forebay.training.tables.placement import PlacementName
from forebay.training.tables.shared_rows import TableUse
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.tables.vocabulary.admitted_rows import SHARED, AdmittedRows
from forebay.training.tables.vocabulary.count_sketch import CountSketch
from forebay.training.tables.vocabulary.saved_rows import SavedRows
from forebay.training.tables.vocabulary.shards import mixed, owners, shard_bounds, shards_of
from forebay.training.tables.wire import WireName


@dataclass(slots=True, kw_only=True)
class _OpenGradient:
    """Gradient of a step on this rank.

    Of `ids` [n] with their lookups `counts`, and of the row that other ids share.

    `gradient` [n + 1, dim] is a mean over ranks. Its last row is the shared row's, equal on all ranks.
    `is_own` [n] tells ids that have a row, or get one at once. The gradient of the others is zero here.
    """

    ids: Tensor
    counts: Tensor
    gradient: Tensor
    is_own: Tensor


class OpenRows(PendingLookups[_OpenGradient]):
    """One table with an open vocabulary in one world.

    All ranks call every method alike.

    A shard, its counts and its limit of rows are on one rank. So which ids have rows does not depend on the world.
    """

    placement: PlacementName = "rows"

    def __init__(
        self,
        tensors: TensorCollectives,
        admission: Admission,
        rows: AdmittedRows,
        facts: TableFacts,
        *,
        wire: WireName,
        rows_done: Callable[[], int],
    ) -> None:
        super().__init__()
        self.tensors, self.wire = tensors, wire
        self._admission, self._rows_done = admission, rows_done
        self.rows, self.facts, self.use = rows, facts, TableUse()
        device = rows.ids.device
        bounds = shard_bounds(tensors.world_size)
        shards = bounds[tensors.rank], bounds[tensors.rank + 1]
        self._owners = owners(tensors.world_size, device)
        first, stop = (0, 0) if admission.is_immediate else shards
        self._sketch = CountSketch(first, stop, facts.rows, device)
        self._saved = SavedRows(rows, self._sketch, shards, facts.rows)
        self._shard_rows = facts.rows // NUM_SHARDS
        self._window = self._check = 0

    @property
    def owned(self) -> OwnedRows:
        """Rows of this rank. Row 0 is shared."""
        return self.rows.owned

    @property
    def is_exchanged(self) -> bool:
        """Whether ranks request rows from each other."""
        return self.tensors.world_size > 1

    def route(self, ids: Tensor) -> RoutedIds:
        """Return unique ids with their counts and owners.

        For any ids [n].
        """
        unique, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        self.use.lookups += len(ids)
        self.use.unique += len(unique)
        pairs = torch.stack([unique, counts], dim=1)
        if not self.is_exchanged:
            return RoutedIds(pairs, (), inverse)
        rank_of = self._owners[shards_of(mixed(unique))]
        order = torch.argsort(rank_of, stable=True)
        position = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        send = torch.bincount(rank_of, minlength=self.tensors.world_size).tolist()
        return RoutedIds(pairs[order], send, position[inverse])

    def answer(self, asked: Tensor, *, is_trained: bool) -> Tensor:
        """Return owned rows of `asked` [n, 2]: float32 [n, dim].

        `asked` has ids and their lookups.
        """
        ids = asked[:, 0].contiguous()
        rows = self.rows.find(ids)
        found = self.owned.read(rows)
        is_shared = rows == SHARED
        if self._admission.is_immediate and is_trained:
            starts = (is_shared & (self.rows.filled[shards_of(mixed(ids))] < self._shard_rows)).nonzero()[:, 0]
            found[starts] = self.rows.start_rows_of(ids[starts])
            is_shared[starts] = False
        self.use.shared += int(is_shared.sum())
        return found

    def sum_received(self, pending: Sequence[PendingLookup], gradients: Sequence[Tensor]) -> None:
        """Sum the gradients of lookups as owners got them.

        Each is float32 [n, dim] for `asked`.

        `shared_gradient` is to be summed over ranks before the update.
        """
        self._due = self._summed(pending, gradients)

    def shared_gradient(self) -> Tensor:
        """Return the shared row's gradient, float32 [dim].

        A view, to be changed in place.
        """
        assert self._due is not None, "sum_received() comes first"
        return self._due.gradient[-1]

    @torch.no_grad()
    def squared_norm(self) -> Tensor:
        """Return this rank's squared gradient norm, a float64 scalar."""
        squares = self._reduced().gradient.double().square().sum(1).cpu()
        # Every rank has the gradient of the shared row.
        return squares.sum() if self.tensors.rank == 0 else squares[:-1].sum()

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradient by a scalar."""
        due = self._reduced()
        due.gradient = due.gradient * factor.to(due.gradient.device)

    @torch.no_grad()
    def update(self, step: int, lr: float) -> None:
        """Make step `step`, from 1; then admit and evict ids."""
        due, position = self._reduced(), self._rows_done()
        self._due = None
        own = due.ids[due.is_own]
        if self._admission.is_immediate:
            self._admit(own[self.rows.find(own) == SHARED], position)
        rows = torch.cat([self.rows.find(own), own.new_full((1,), SHARED)])
        gradient = torch.cat([due.gradient[:-1][due.is_own], due.gradient[-1:]])
        touched = gradient.any(1)
        self.owned.update(rows[touched], gradient[touched], step, lr)
        self.rows.mark_seen(rows[:-1], position)
        self.use.steps += 1
        self.use.touched += int(touched[:-1].sum())
        self._begin_window(position)
        if not self._admission.is_immediate:
            self._count(due.ids[~due.is_own], due.counts[~due.is_own], position)
        self._evict(position)

    def parts(self) -> dict[str, FlatPart]:
        """Return this rank's parts of the rows, for a checkpoint."""
        return self._saved.parts(self.tensors)

    def state(self) -> dict[str, Any]:
        """Return the state that is equal on all ranks."""
        position = {"window": self._window, "check": self._check}
        return {**position, "decay": self.owned.decay, "shared": self._saved.shared_row()}

    def load(self, parts: Mapping[str, Tensor | FlatPart], state: Mapping[str, Any]) -> None:
        """Take over a saved state.

        Raises `ValueError` if it does not fit.
        """
        self.discard()
        self._saved.load(parts, state.get("shared", {}))
        self._window, self._check, self.owned.decay = state["window"], state["check"], state["decay"]

    def restored(self, key: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor | FlatPart:
        """Return what this rank reads of the saved tensor `key`."""
        return self._saved.restored(key, shape, read)

    def take(self, ids: Tensor, seen: Tensor, tensors: Mapping[str, Tensor]) -> int:
        """Load rows of an earlier run, under new ids [n].

        Returns how many this rank has now.

        `seen` counts from the end of that run, so it is 0 or less. A full shard takes no more.
        """
        device = self.rows.ids.device
        ids, order = torch.sort(ids.to(device))
        own = self._owners[shards_of(mixed(ids))] == self.tensors.rank
        own[own.clone()] = self._fits(ids[own], seen.to(device)[order[own]])
        chosen = order[own].cpu()
        begin = self.rows.count + 1
        self.rows.admit(ids[own], 0)
        self.rows.seen[begin - 1 :] = seen[chosen].to(device)
        for name in tensors.keys() & self.owned.tensors.keys():
            self.owned.tensors[name][begin : begin + len(chosen)] = tensors[name][chosen].to(device)
        return len(chosen)

    def take_shared_row(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the shared row of an earlier run."""
        for name in tensors.keys() & self.owned.tensors.keys():
            self.owned.tensors[name][SHARED : SHARED + 1] = tensors[name].to(self.rows.ids.device)

    def weight(self) -> Tensor:
        """Return the newest values of this rank's rows."""
        return self.owned.caught_up()[1 : self.rows.count + 1]

    def id_of(self, row: int) -> int:
        """Return the id of a row of `weight`."""
        return int(self.rows.ids[row])

    @torch.no_grad()
    def _reduced(self) -> _OpenGradient:
        if self._due is None:
            assert not self.is_exchanged, "reduced together with other tables"
            pending = self.pop_pending()
            self._due = self._summed(pending, [each.gradient for each in pending])
        return self._due

    def _summed(self, pending: Sequence[PendingLookup], gradients: Sequence[Tensor]) -> _OpenGradient:
        """Sum gradients of equal ids in a fixed order.

        By lookup, and within a lookup by rank.

        Divide by their number.
        """
        weight, size = self.owned.tensors[WEIGHT], self.tensors.world_size
        asked = torch.cat([self.rows.ids.new_zeros(0, 2), *(each.asked for each in pending)])
        gradient = torch.cat([weight.new_zeros(0, self.facts.dim), *gradients])
        touched = gradient.any(1)  # Rows of an empty part of a batch have no gradient, and do not count as lookups.
        ids, inverse = torch.unique(asked[touched, 0], return_inverse=True)
        total = weight.new_zeros(len(ids), self.facts.dim).index_add_(0, inverse, gradient[touched]).div_(size)
        counts = torch.zeros_like(ids).index_add_(0, inverse, asked[touched, 1])
        is_own = self.rows.find(ids) != SHARED
        if self._admission.is_immediate:
            is_own[~is_own] = self._fits(ids[~is_own], counts[~is_own])
        gradient = torch.cat([total * is_own.unsqueeze(1), total[~is_own].sum(0, keepdim=True)])
        return _OpenGradient(ids=ids, counts=counts, gradient=gradient, is_own=is_own)

    def _begin_window(self, position: int) -> None:
        window = self._admission.window_of(position)
        if window != self._window:
            self._window = window
            self._sketch.counts.zero_()

    def _count(self, ids: Tensor, counts: Tensor, position: int) -> None:
        """Count lookups without a row, and admit frequent ids."""
        totals = self._sketch.add(ids, counts)
        is_frequent = totals >= self._admission.min_count
        ids, totals = ids[is_frequent], totals[is_frequent]
        self._admit(ids[self._fits(ids, totals)], position)

    def _fits(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return the `ids` that their shards have room for.

        The most frequent of sorted `ids` [n], then the smallest.
        """
        order = torch.argsort(counts, descending=True, stable=True)
        shards = shards_of(mixed(ids))[order]
        by_shard = torch.argsort(shards, stable=True)
        order, shards = order[by_shard], shards[by_shard]
        before = torch.arange(len(ids), device=ids.device) - torch.searchsorted(shards, shards)
        fits = torch.zeros_like(ids, dtype=torch.bool)
        fits[order] = self.rows.filled[shards] + before < self._shard_rows
        return fits

    def _admit(self, ids: Tensor, position: int) -> None:
        self.rows.admit(ids, position)
        self.use.admitted += len(ids)

    def _evict(self, position: int) -> None:
        check, unseen_for = self._admission.check_of(position), self._admission.evict_after
        if unseen_for is not None and check != self._check:
            self._check = check
            self.use.evicted += self.rows.evict_before(position - unseen_for)
