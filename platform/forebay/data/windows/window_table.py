"""Blocks held in memory to gather windows from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels.calls import are_present, fill_windows, gather_scaled, gather_steps, load_windows
from forebay.data.plan.order import Order, PositionedRows
from forebay.data.plan.permute import Ints
from forebay.data.transform.block import Block
from forebay.data.windows.index import LocatedWindows, WindowIndex, window_indices
from forebay.data.windows.sequence_block import RESTS, RUN_ENDS, STATIC, VALUES
from forebay.data.windows.views import View, WindowViews
from forebay.errors import SourceChanged
from forebay.runtime.memory.pool import BufferPool

_NO_MASK = np.empty(0, dtype=np.uint8)

Arrays = dict[str, NDArray[np.generic]]


class ViewPart(NamedTuple):
    """Consecutive steps of a view, as kernels read them.

    Attributes:
        first: Number of the first step in the view.
        facts: Argument `view` of the kernels.
    """

    first: int
    facts: NDArray[np.int64]


class WindowTable:
    """Blocks of one dataset, by run.

    `gather` copies the steps of any windows into one buffer of the pool.

    Args:
        index: Windows of the plan.
        views: Arrays of a batch.
        block_rows: Rows of each row group, int64 [blocks].
        pool: Memory of batches.
    """

    def __init__(self, index: WindowIndex, views: WindowViews, block_rows: NDArray[np.int64], pool: BufferPool) -> None:
        load_windows()
        self._index, self._views, self._block_rows, self._pool = index, views, block_rows, pool
        self._blocks: dict[int, Block] = {}
        self._dtypes = tuple(dict.fromkeys(view.dtype for view in views.views))
        # One row of starts, and one of addresses per dtype: address of a step at offset 0, if the run reached so far.
        # The last one is of the rests of float32.
        self._rests: dict[int, NDArray[np.generic]] | None = {} if any(v.with_rests for v in views.views) else None
        self._line = np.zeros((2 + len(self._dtypes), len(index.line.starts)), dtype=np.int64)
        self._line[0] = index.line.starts
        self._is_present = np.zeros(len(index.line.block), dtype=bool)
        self._parts = [self._parts_of(view) for view in views.views]
        self._static: Arrays = {}

    def locate(self, block: Ints, row: Ints, shifts: Ints) -> LocatedWindows:
        """Locate windows `row` of `block`, each moved by its shift.

        All arguments int64 [n].
        """
        return self._index.locate(block, row, shifts)

    def has(self, windows: LocatedWindows) -> bool:
        """Whether no block is `missing`."""
        return are_present(windows.table, self._index.shape.length, self._line, self._is_present)

    def missing(self, windows: LocatedWindows) -> list[int]:
        """Blocks that windows read and the table lacks."""
        return [block for block in self._index.blocks_of(windows).tolist() if block not in self._blocks]

    def add(self, index: int, block: Block) -> None:
        """Add a block.

        Raises `SourceChanged` if it does not have the rows of the plan.
        """
        if block.rows != self._block_rows[index]:
            raise SourceChanged(
                f"Row group {index} has {block.rows} rows; the windows were made for {self._block_rows[index]}. Scan "
                "the data again.",
                row_group=index,
            )
        runs = self._index.runs_in(index)
        first = self._index.line.first[runs]
        arrays = [block.arrays[f"{VALUES}{dtype}"] for dtype in self._dtypes]
        if self._rests is not None:
            rests = block.arrays.get(f"{RESTS}float32")
            arrays.append(np.zeros_like(block.arrays[f"{VALUES}float32"]) if rests is None else rests)
            self._rests[index] = arrays[-1]
        for number, steps in enumerate(arrays, start=1):
            self._line[number, runs] = steps.ctypes.data + (first - self._line[0, runs]) * steps.strides[0]
        own = np.searchsorted(block.arrays[RUN_ENDS], first, side="right")
        for name in self._views.static:
            values = block.arrays[f"{STATIC}{name}"]
            if name not in self._static:
                self._static[name] = np.zeros((len(self._index.line.block), *values.shape[1:]), values.dtype)
            self._static[name][runs] = values[own]
        self._blocks[index], self._is_present[runs] = block, True

    def remove(self, index: int) -> Block | None:
        """Remove and return a block.

        None if the table does not have it.
        """
        self._is_present[self._index.runs_in(index)] = False
        if self._rests is not None:
            self._rests.pop(index, None)
        return self._blocks.pop(index, None)

    def gather(self, windows: LocatedWindows) -> tuple[Arrays, int]:
        """Copy windows into one buffer.

        No block may be `missing`. Returns the arrays and their bytes.
        """
        arrays, end = self._buffers(len(windows.start))
        for view, parts in zip(self._views.views, self._parts, strict=True):
            if view.scaling is None:
                self._copy(view, parts, arrays[view.name], windows.table)
            else:
                mask = arrays.get(f"{view.name}_observed")
                self._scale(view.scaling, parts, arrays[view.name], mask, windows.table)
        if self._views.past is not None:
            arrays["past_lengths"] = (windows.start + self._views.past - windows.real).astype(np.int32)
        for name in self._views.static:
            arrays[name] = self._static[name][windows.run]
        return {name: array.view(bool) if name.endswith("_observed") else array for name, array in arrays.items()}, end

    def _buffers(self, count: int) -> tuple[Arrays, int]:
        """Allocate the arrays and masks in one buffer.

        They are uninitialised. Returns them and their bytes.
        """
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        for view in self._views.views:
            shapes[view.name] = view.dtype, (count, len(view.steps), len(view.columns))
            if self._views.observed and view.scaling is not None:
                shapes[f"{view.name}_observed"] = "uint8", shapes[view.name][1]
        return self._pool.lease_arrays(shapes)

    def _parts_of(self, view: View) -> list[ViewPart]:
        """Ranges of a view.

        Made once: a batch of 256 windows spent a fifth of its time on them.
        """
        number = self._dtypes.index(view.dtype) + 1
        if view.scaling is None:
            step_bytes = view.width * np.dtype(view.dtype).itemsize
            tail = [step_bytes, len(view.steps) * step_bytes, number]
        else:
            rests = 1 + len(self._dtypes) if view.with_rests else 0
            tail = [view.width, len(view.steps) * len(view.columns), number, rests, *view.columns]
        return [ViewPart(first, np.array([step, count, *tail])) for first, step, count in view.ranges()]

    def _copy(self, view: View, parts: list[ViewPart], out: NDArray[np.generic], windows: NDArray[np.int64]) -> None:
        whole = out if view.copies_rows else np.empty((*out.shape[:2], view.width), view.dtype)
        for first, facts in parts:
            gather_steps(whole.ctypes.data + first * whole.strides[1], facts, self._line, windows)
        if whole is not out:
            np.take(whole, view.columns, axis=2, out=out)

    def _scale(
        self,
        scaling: NDArray[np.float32],
        parts: list[ViewPart],
        out: NDArray[np.generic],
        mask: NDArray[np.generic] | None,
        windows: NDArray[np.int64],
    ) -> None:
        # A view that came through Ray is read-only, which compiled loops refuse.
        scaling = scaling if scaling.flags.writeable else scaling.copy()
        width = out.shape[2]
        flat, flat_mask = out.reshape(-1), None if mask is None else mask.reshape(-1)
        for first, facts in parts:
            part = flat[first * width :]
            gather_scaled(part, facts, scaling, self._line, windows)  # type: ignore[arg-type]
            if flat_mask is not None or scaling[3].any():
                part_mask = _NO_MASK if flat_mask is None else flat_mask[first * width :]
                fill_windows(part, part_mask, facts, scaling, self._line, windows)  # type: ignore[arg-type]


class SourceWindows(NamedTuple):
    """Windows of one dataset in a batch.

    Number of the dataset, rows of the batch, and the located windows.
    """

    source: int
    rows: Ints | slice
    windows: LocatedWindows


class WindowTables:
    """One `WindowTable` for each dataset of a plan.

    Blocks are numbered over all datasets.

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
        """Blocks of `rows` that the tables lack."""
        found: list[int] = []
        for source, _, windows in self._located(rows):
            table = self._tables[source]
            if not table.has(windows):
                found += [int(self._first[source]) + block for block in table.missing(windows)]
        return found

    def add(self, index: int, block: Block) -> None:
        """Add a block.

        Raises `SourceChanged` if it does not have the rows of the plan.
        """
        source = self._source_of(index)
        self._tables[source].add(index - int(self._first[source]), block)

    def remove(self, index: int) -> Block | None:
        """Remove and return a block.

        None if the tables do not have it.
        """
        source = self._source_of(index)
        return self._tables[source].remove(index - int(self._first[source]))

    def gather(self, rows: PositionedRows) -> tuple[Arrays, int] | None:
        """Copy windows into one buffer.

        Returns the arrays and their bytes, or None if a block is `missing`.
        """
        if self.missing(rows):
            return None
        located = self._located(rows)
        made = [self._tables[source].gather(windows) for source, _, windows in located]
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
        """Return a function for the windows' ids.

        It returns the entity of its dataset, and first step, of each window, int64 [n, 2]. It holds
        the located windows and no block.
        """
        return partial(_window_ids, self._indices, self._located(rows), len(rows.row))

    def _source_of(self, block: int) -> int:
        return int(np.searchsorted(self._first, block, side="right")) - 1

    def _located(self, rows: PositionedRows) -> list[SourceWindows]:
        """Located windows, by dataset.

        A batch asks three times, and its rows are located once.
        """
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
    for source, own, windows in located:
        found[own] = indices[source].entity_steps(windows)
    return found
