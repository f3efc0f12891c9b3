"""Rows of admitted ids on one rank, with optimizer state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from forebay.training.tables.layout import NUM_SHARDS
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.owned_rows import DECAYED, WEIGHT, OwnedRows, TableFacts
from forebay.training.tables.start_values import start_rows
from forebay.training.tables.vocabulary.shards import above_shard, mixed, shards_of

_START_CELLS = 1 << 10


class IdIndex:
    """Row, from 1, of each of some int64 ids.

    A quarter to half of the cells are used, but for a few ids.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._count = 0
        self._allocate(_START_CELLS)

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes

    def find(self, ids: Tensor) -> Tensor:
        """Return the rows [n] of ids [n], 0 without one."""
        found, cells = torch.zeros_like(ids), self._first_cells(ids)
        active = torch.arange(len(ids), device=ids.device)
        while len(active):
            at = cells[active]
            rows = self._rows[at]
            is_hit = (rows != 0) & (self._keys[at] == ids[active])
            found[active[is_hit]] = rows[is_hit]
            is_other = (rows != 0) & ~is_hit
            active = active[is_other]
            cells[active] = (at[is_other] + 1) & self._mask
        return found

    def insert(self, ids: Tensor, rows: Tensor) -> None:
        """Add new ids [n], each once, with their rows [n]."""
        self._count += len(ids)
        if 2 * self._count > len(self._keys):
            is_used = self._rows != 0
            ids, rows = torch.cat([self._keys[is_used], ids]), torch.cat([self._rows[is_used], rows])
            self._allocate(1 << (2 * self._count).bit_length())
        cells = self._first_cells(ids)
        active = torch.arange(len(ids), device=ids.device)
        while len(active):
            at = cells[active]
            is_free = self._rows[at] == 0
            self._rows[at[is_free]] = rows[active[is_free]]
            # Of several ids that took one cell, one has it now.
            has_it = is_free & (self._rows[at] == rows[active])
            self._keys[at[has_it]] = ids[active[has_it]]
            active = active[~has_it]
            cells[active] = (at[~has_it] + 1) & self._mask

    def clear(self) -> None:
        """Forget all ids."""
        self._count = 0
        self._allocate(_START_CELLS)

    def _allocate(self, cells: int) -> None:
        self._mask = cells - 1
        self._keys = torch.zeros(cells, dtype=torch.int64, device=self._device)
        self._rows = torch.zeros(cells, dtype=torch.int64, device=self._device)

    def _first_cells(self, ids: Tensor) -> Tensor:
        return above_shard(mixed(ids)) & self._mask


SHARED = 0
"""Row of all ids that have none of their own. Every rank has it."""
_LEAST_ROWS = 64
_PLACE_BYTES = 16
INDEX_BYTES = 64
"""Most bytes of the index for each row."""
_SHARED_NAME = "/shared"


class AdmittedRows:
    """Rows of admitted ids.

    Row 0 is `SHARED`; rows 1 to `count` belong to `ids`, in order of admission.

    `seen` is the row of the run at which each one was last looked up. Which row an id has shows in no result.
    """

    def __init__(self, facts: TableFacts, optimizer: RowOptimizer, device: torch.device) -> None:
        self._facts, self._optimizer, self._device = facts, optimizer, device
        self._index = IdIndex(device)
        self.owned = OwnedRows(facts, (0, 0), optimizer, device)
        self._ids = self._seen = torch.zeros(0, dtype=torch.int64, device=device)
        self._reserve(_LEAST_ROWS)
        self._end = 1
        self.filled = torch.zeros(NUM_SHARDS, dtype=torch.int64, device=device)
        """Number of rows of each shard."""
        self.owned.tensors[WEIGHT][SHARED] = self._start_rows(np.zeros(1, np.int64), facts.name + _SHARED_NAME)[0]

    @property
    def count(self) -> int:
        return self._end - 1

    @property
    def ids(self) -> Tensor:
        return self._ids[1 : self._end]

    @property
    def seen(self) -> Tensor:
        return self._seen[1 : self._end]

    @property
    def num_bytes(self) -> int:
        """Bytes of rows, state and index, with what is reserved."""
        row = self._facts.row_bytes(self._optimizer) + _PLACE_BYTES
        return len(self._ids) * row + self._index.num_bytes

    @staticmethod
    def bytes_of(facts: TableFacts, optimizer: RowOptimizer, rows: int) -> int:
        """Return the most bytes of so many rows.

        Without reserved memory.
        """
        return rows * (facts.row_bytes(optimizer) + _PLACE_BYTES + INDEX_BYTES)

    def find(self, ids: Tensor) -> Tensor:
        """Return the rows [n] of ids [n], `SHARED` without one."""
        return self._index.find(ids)

    def start_rows_of(self, ids: Tensor) -> Tensor:
        """Return the start values [n, dim] of ids [n].

        The same at any time and on any rank.
        """
        return self._start_rows(ids.cpu().numpy(), self._facts.name)

    def admit(self, ids: Tensor, position: int) -> None:
        """Give rows to new ids [n], each once."""
        begin, end = self._end, self._end + len(ids)
        self._reserve(end)
        self._end = end
        self._ids[begin:end], self._seen[begin:end] = ids, position
        for name, values in self.owned.tensors.items():
            values[begin:end] = self.owned.decay if name == DECAYED else 0.0
        self.owned.tensors[WEIGHT][begin:end] = self.start_rows_of(ids)
        self._add_to_index(begin)

    def mark_seen(self, rows: Tensor, position: int) -> None:
        """Note that `rows` were looked up."""
        self._seen[rows] = position

    def evict_before(self, position: int) -> int:
        """Forget ids not looked up after `position`.

        Returns their number.
        """
        kept = torch.cat([self._seen.new_ones(1, dtype=torch.bool), self.seen > position]).nonzero()[:, 0]
        evicted = self._end - len(kept)
        if evicted:
            tensors = {name: values[kept] for name, values in self.owned.tensors.items()}
            self.replace(self._ids[kept], self._seen[kept], tensors)
        return evicted

    def replace(self, ids: Tensor, seen: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Take over other rows, the first of which is `SHARED`.

        Missing state begins at 0.
        """
        self._ids, self._seen, self._end = ids.clone(), seen.clone(), len(ids)
        self.owned.end = len(ids)
        self.owned.adopt(tensors)
        self._index.clear()
        self.filled.zero_()
        self._add_to_index(1)

    def _add_to_index(self, begin: int) -> None:
        ids = self._ids[begin : self._end]
        self._index.insert(ids, torch.arange(begin, self._end, device=self._device))
        self.filled += torch.bincount(shards_of(mixed(ids)), minlength=NUM_SHARDS)

    def _reserve(self, rows: int) -> None:
        """Grow to hold `rows` rows.

        A quarter more is reserved, so that few rows are copied often.
        """
        before = len(self._ids)
        if rows <= before:
            return
        more = max(rows, before + before // 4) - before
        self._ids, self._seen = (torch.cat([each, each.new_zeros(more)]) for each in (self._ids, self._seen))
        tensors = self.owned.tensors if before else {}
        self.owned.end = before + more
        self.owned.adopt(
            {name: torch.cat([each, each.new_zeros(more, *each.shape[1:])]) for name, each in tensors.items()}
        )

    def _start_rows(self, ids: np.ndarray, name: str) -> Tensor:
        facts = self._facts
        return start_rows(ids, facts.dim, seed=facts.seed, table=name, scale=facts.scale).to(self._device)
