"""Tables of the windows of all datasets of a plan, and the batches that rows of several datasets make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.data.plan.order import Order, PositionedRows
from forebay.data.plan.permute import Ints
from forebay.data.transform.block import Block
from forebay.data.windows.index import WindowIndex, WindowPlaces, window_indices
from forebay.data.windows.views import WindowViews
from forebay.data.windows.window_table import Arrays, WindowTable
from forebay.runtime.memory.buffers import BufferPool


class SourceWindows(NamedTuple):
    """Windows of one dataset in a batch: number of the dataset, rows of the batch, and places on its line."""

    source: int
    rows: Ints | slice
    places: WindowPlaces


class WindowTables:
    """One `WindowTable` for each dataset of a plan. Blocks are numbered over all datasets.

    Args:
        plan: Order of windows.
        views: Arrays of the windows of each dataset, of the same names, dtypes and trailing shapes.
        pool: Memory of batches.
        epoch: Epoch of the plan.
    """

    def __init__(self, plan: Order, views: Sequence[WindowViews], pool: BufferPool, *, epoch: int) -> None:
        self._plan, self._pool, self._epoch = plan, pool, epoch
        self._first = np.cumsum([0, *(len(manifest) for manifest in plan.manifests)])
        self._indices = window_indices(plan)
        self._tables = [
            WindowTable(index, view, plan.block_rows[first:stop], pool)
            for index, view, (first, stop) in zip(self._indices, views, pairwise(self._first.tolist()), strict=True)
        ]
        self._last: tuple[PositionedRows, list[SourceWindows]] | None = None

    def missing(self, rows: PositionedRows) -> list[int]:
        """Numbers of the blocks of `rows` that are not in the tables."""
        found: list[int] = []
        for source, _, places in self._located(rows):
            table = self._tables[source]
            if not table.has(places):
                found += [int(self._first[source]) + block for block in table.missing(places)]
        return found

    def add(self, index: int, block: Block) -> None:
        """Add a block. Raises `SourceChanged` if it does not have the rows of the plan."""
        source = self._source_of(index)
        self._tables[source].add(index - int(self._first[source]), block)

    def remove(self, index: int) -> Block | None:
        """Remove and return a block, or None if it is not in the tables."""
        source = self._source_of(index)
        return self._tables[source].remove(index - int(self._first[source]))

    def gather(self, rows: PositionedRows) -> tuple[Arrays, int] | None:
        """Copy windows into one buffer. Returns the arrays and their bytes, or None if a block is `missing`."""
        if self.missing(rows):
            return None
        located = self._located(rows)
        made = [self._tables[source].gather(places) for source, _, places in located]
        if len(made) == 1:
            return made[0]
        parts = [arrays for arrays, _ in made]
        shapes = {name: (array.dtype, (len(rows.row), *array.shape[1:])) for name, array in parts[0].items()}
        whole, num_bytes = self._pool.lease_arrays(shapes)
        for (_, own, _), arrays in zip(located, parts, strict=True):
            for name, array in arrays.items():
                whole[name][own] = array
        return whole, num_bytes

    def window_ids(self, rows: PositionedRows) -> Callable[[], NDArray[np.int64]]:
        """Function that returns the entity of its dataset, and first step, of each window, int64 [n, 2].

        It holds the places of the windows and no block.
        """
        return partial(_window_ids, self._indices, self._located(rows), len(rows.row))

    def _source_of(self, block: int) -> int:
        return int(np.searchsorted(self._first, block, side="right")) - 1

    def _located(self, rows: PositionedRows) -> list[SourceWindows]:
        """Windows of each dataset that has some. A batch asks three times, and its rows are located once."""
        if self._last is None or self._last[0] is not rows:
            self._last = rows, self._locate(rows)
        return self._last[1]

    def _locate(self, rows: PositionedRows) -> list[SourceWindows]:
        if len(self._tables) == 1:
            shifts = self._plan.window_shifts(self._epoch, rows.position)
            return [SourceWindows(0, slice(None), self._tables[0].locate(rows.block, rows.row, shifts))]
        source_of = np.searchsorted(self._first, rows.block, side="right") - 1
        located = []
        for source in np.unique(source_of).tolist():
            own = np.flatnonzero(source_of == source)
            shifts = self._plan.window_shifts(self._epoch, rows.position[own], source)
            block = rows.block[own] - self._first[source]
            located.append(SourceWindows(source, own, self._tables[source].locate(block, rows.row[own], shifts)))
        return located


def _window_ids(indices: Sequence[WindowIndex], located: list[SourceWindows], count: int) -> NDArray[np.int64]:
    found = np.empty((count, 2), dtype=np.int64)
    for source, own, places in located:
        found[own] = indices[source].entity_steps(places)
    return found
