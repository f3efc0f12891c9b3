"""The kernels as functions. Each is loaded at its first call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels.kernel import Kernel
from forebay.data.kernels.kernel import load as load_kernels

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float32]

_LANE_WORDS = 4096
"""Working memory of `order_lanes`, at least `orders.LANE_WORDS`."""


def _divided() -> ModuleType:
    from forebay.data.kernels import divided  # noqa: PLC0415 - late, as in the four below: see `kernel`

    return divided


def _lists() -> ModuleType:
    from forebay.data.kernels import lists  # noqa: PLC0415

    return lists


def _loops() -> ModuleType:
    from forebay.data.kernels import loops  # noqa: PLC0415

    return loops


def _orders() -> ModuleType:
    from forebay.data.kernels import orders  # noqa: PLC0415

    return orders


def _philox() -> ModuleType:
    from forebay.data.kernels import philox  # noqa: PLC0415

    return philox


def _of(module: Callable[[], ModuleType], *names: str) -> tuple[Kernel, ...]:
    return tuple(Kernel(module, name) for name in names)


_pack_columns_4, _pack_columns_8, _pad, _gather_arrays = _LOOPS = _of(
    _loops, "pack_columns_4", "pack_columns_8", "pad", "gather_arrays"
)
_locate_windows, _are_present, _gather_steps, _gather_scaled, _fill_windows = _WINDOWS = _of(
    _loops, "locate_windows", "are_present", "gather_steps", "gather_scaled", "fill_windows"
)
_locate_lists, _gather_lists = _LISTS = _of(_lists, "locate_lists", "gather_lists")
_order_lanes, _merge = _ORDERS = _of(_orders, "order_lanes", "merge")
_DIVIDED = _of(_divided, "gather_arrays", "gather_lists", "serve", "stop")
_row_words, _to_normal = _PHILOX = _of(_philox, "row_words", "to_normal")

OF_ALL_JOBS = (_pack_columns_4, _gather_arrays, _order_lanes)
ALL = (*_LOOPS, *_WINDOWS, *_LISTS, *_ORDERS, *_DIVIDED, *_PHILOX)


@cache
def load() -> None:
    """Load the kernels of the order and of the gather."""
    load_kernels(OF_ALL_JOBS)


@cache
def load_divided() -> ModuleType:
    """Load the gathers that several threads share.

    Few machines lack the cores for them.
    """
    load_kernels(_DIVIDED)
    return _divided()


@cache
def load_windows() -> None:
    """Load the kernels of all windows, so that several processes compile them.

    Those that scale and fill are loaded at their first call.
    """
    load_kernels((_locate_windows, _are_present, _gather_steps))


@cache
def load_random() -> None:
    """Load the random numbers of rows, for an augment."""
    load_kernels(_PHILOX)


def gather_arrays(target: int, layout: Ints, bases: Words, slot_of: Ints, block: Ints, row: Ints) -> int:
    """Gather each array of a batch.

    Returns -1, or a block without a slot (then nothing was copied).

    `target` is an address. Array `k` has rows of `layout[k, 0]` bytes and goes to `target + layout[k, 1]`. Output row
    `i` is row `row[i]` of block `block[i]`, whose arrays are at the addresses `bases[:, slot_of[block[i]]]`.
    """
    missing: int = _gather_arrays.call(target, layout, bases, slot_of, block, row)
    return missing


def row_words(key: int, call: int, rows: Words, words: NDArray[np.uint32]) -> None:
    """Write random bits, uint32 [rows, n].

    They depend on the 64-bit `key`, on `call` below 2**32 and on each row.
    """
    _row_words.call(np.uint64(key), np.uint64(call), rows, words)


def to_normal(chances: NDArray[np.float64]) -> None:
    """Replace probabilities by standard normal quantiles.

    The probabilities lie in (0, 1).
    """
    _to_normal.call(chances)


def locate_lists(layout: Ints, bases: Words, slot_of: Ints, block: Ints, row: Ints, lists: Ints) -> int:
    """Write address and length of each list of a batch.

    Into `lists` [arrays, 2, n].

    Array `k` has its values at the addresses `bases[layout[k, 0]]`, and the int32 offsets of its lists at
    `bases[layout[k, 1]]`, by slot. An item has `layout[k, 2]` bytes. Blocks, rows and the result are those of
    `gather_arrays`.
    """
    missing: int = _locate_lists.call(layout, bases, slot_of, block, row, lists)
    return missing


def gather_lists(target: int, layout: Ints, lists: Ints) -> None:
    """Copy the lists of each array without gaps.

    To address `target + layout[k, 1]`.

    List `i` of array `k` has `lists[k, 1, i]` items of `layout[k, 0]` bytes, at address `lists[k, 0, i]`.
    """
    _gather_lists.call(target, layout, lists)


def order_lanes(lanes: Words, ranges: Ints, stride: int, block: Ints, row: Ints) -> None:
    """Write the block and row of lane rows.

    Rows `ranges[k, 0]` to `ranges[k, 1]` of each lane `k`.

    The first one goes to index `ranges[k, 2]` of `block` and `row`, and each next one `stride` further. A lane is
    (addresses of the ends, blocks and shifts of its pieces and of the bounds of its shuffles, number of pieces, number
    of shuffles, key, whether rows are shuffled).
    """
    _order_lanes.call(lanes, ranges, stride, block, row, np.empty(_LANE_WORDS, np.uint64))


def merge(nodes: Ints, due: Ints, span: Ints, streams: Words, state: Ints, merged: Ints) -> int:
    """Merge rows into the order of a mixture.

    The rows of several datasets are each in their own order.

    `nodes` are the inner nodes of a tree, each after the node that it is a half of: (steps of a cycle, steps of the
    left half, left half, right half). A half is a node, or `-1 - dataset`. `due` counts each node's steps towards the
    next row of its left half. `span` is (first position, end, root, rows of `merged` that are written). `streams` has,
    for each dataset, the addresses of the numbers of its rows and of their columns. `state` [3, datasets] is the
    number of its next row, index of its next row in the stream, and number of rows of the stream. A row that is not in
    the stream belongs to another rank. `merged` [1 + columns, n] gets positions and columns. Returns the rows of
    `merged` that are now written. `due` and `state` advance, so that another tree can continue.
    """
    written: int = _merge.call(nodes, due, span, streams, state, merged)
    return written


def locate_windows(windows: Ints, block: Ints, row: Ints, blocks: Ints, runs: Ints, stride: int) -> None:
    """Write the position of each window.

    Start, first real step and run of window `row[i]` of block `block[i]`, into `windows` [3, n].

    `windows[0]` holds the shift of each window before. `blocks[0, b]` is the number of the first window of block `b`,
    and `blocks[1, b]` the column of its first run in `runs`: end of the run's windows, the run, start of its first
    window, and the first position that its windows may read.
    """
    _locate_windows.call(windows, block, row, blocks, runs, stride)


def are_present(windows: Ints, length: int, line: Ints, is_present: NDArray[np.bool_]) -> bool:
    """Whether all runs of windows are present.

    The runs that the `length` steps of each of `windows` [3, n] read, with the run of each.

    `line[0, r]` is the position of the first step of run `r`.
    """
    found: bool = _are_present.call(windows, length, line, is_present)
    return found


def pack_columns(columns: Words, rows: int, packed: NDArray[np.int32] | NDArray[np.int64]) -> None:
    """Interleave `columns` into rows.

    `columns` are the addresses of arrays of `rows` items, `packed` is [rows * len(columns)].
    """
    kernel = _pack_columns_4 if packed.itemsize == 4 else _pack_columns_8
    kernel.call(columns, rows, packed)


def pad(target: int, row_bytes: int, values: int, item_bytes: int, starts: Ints, lengths: NDArray[np.int32]) -> None:
    """Copy and pad lists of items.

    `lengths[i]` items from item `starts[i]` at address `values` go into row `i` at `target`, then zeros.
    """
    _pad.call(target, row_bytes, values, item_bytes, starts, lengths)


def gather_steps(target: int, view: Ints, line: Ints, windows: Ints) -> None:
    """Copy the same steps of each window.

    To an array at address `target`.

    `view` is (first step, steps, bytes of a step, bytes of a window of the target, row of `line` with the addresses).
    `line[0, r]` is the position of the first step of run `r`. The step at position `p` of run `r` is at address
    `line[view[4], r] + p * view[2]`. A window is (start, first real position, a run before or at that position) in
    `windows` [3, n]. Steps before the first real position become zeros.
    """
    _gather_steps.call(target, view, line, windows)


def gather_scaled(out: Floats, view: Ints, scaling: Floats, line: Ints, windows: Ints) -> None:
    """Gather scaled steps of float32 columns.

    As `gather_steps`, with each value as `(value - scaling[0] + rest - scaling[4]) * scaling[1]` of its column.

    `view` is (first step, steps, columns of a step, values of a window of `out`, row of `line` with the addresses, row
    with the addresses of the rests or 0 for no rests, columns to copy...). Padding is 0.
    """
    _gather_scaled.call(out, view, scaling, line, windows)


def fill_windows(
    out: Floats, observed: NDArray[np.uint8], view: Ints, scaling: Floats, line: Ints, windows: Ints
) -> None:
    """Fill the NaNs of `gather_scaled` in `out`.

    Of the same view.

    `scaling[3]` holds the fill of a column: 0 keeps its NaNs. 1 takes the last value before one in its window, and
    without one `scaling[2]`, which is scaled. 2 takes the next value of this view before that. `observed`, if not
    empty, becomes 1 where a value was not filled, and 0 elsewhere, also for padding.
    """
    _fill_windows.call(out, observed, view, scaling, line, windows)
