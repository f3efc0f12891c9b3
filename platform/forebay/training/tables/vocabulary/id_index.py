"""Rows of ids, without collisions: a hash table with open addressing, looked up and filled for many ids at once."""

from __future__ import annotations

import torch
from torch import Tensor

from forebay.training.tables.vocabulary.shards import above_shard, mixed

_START_CELLS = 1 << 10


class IdIndex:
    """Row, from 1, of each of some int64 ids. A quarter to half of the cells are used, but for a few ids."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._count = 0
        self._allocate(_START_CELLS)

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes

    def find(self, ids: Tensor) -> Tensor:
        """Return the rows [n] of ids [n]: 0 for those that have none."""
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
        """Add ids [n] that are not there, each of them once, with their rows [n]."""
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
