"""The kernels as functions. The first call of any loads all, from Numba's cache or by compiling them.

Numba and its kernels take 1 CPU second to import. A process that moves no row - the command line, a driver, the
controller of Ray Train - never calls one.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float32]


class Kernels(NamedTuple):
    """Modules of compiled functions."""

    lists: ModuleType
    loops: ModuleType
    orders: ModuleType


@cache
def load() -> Kernels:
    """Load all kernels. Call it before other threads start: a process forked during the first call deadlocks."""
    from forebay.data.kernels import lists, loops, orders  # noqa: PLC0415

    return Kernels(lists, loops, orders)


@cache
def load_philox() -> ModuleType:
    """Load the random numbers of rows, which few processes need: 8 ms. Before other threads start, as for `load`."""
    from forebay.data.kernels import philox  # noqa: PLC0415

    return philox


def gather_arrays(target: int, places: Ints, bases: Words, slot_of: Ints, block: Ints, row: Ints) -> int:
    """Gather each array of a batch. Returns -1, or a block without a slot (then nothing was copied).

    `target` is an address. Array `k` has rows of `places[k, 0]` bytes and goes to `target + places[k, 1]`. Output row
    `i` is row `row[i]` of block `block[i]`, whose arrays are at the addresses `bases[:, slot_of[block[i]]]`.
    """
    missing: int = load().loops.gather_arrays(target, places, bases, slot_of, block, row)
    return missing


def row_words(key: int, call: int, rows: Words, words: NDArray[np.uint32]) -> None:
    """Write random bits, uint32 [rows, n], that depend on the 64-bit `key`, on `call` below 2**32 and on each row."""
    load_philox().row_words(np.uint64(key), np.uint64(call), rows, words)


def to_normal(chances: NDArray[np.float64]) -> None:
    """Replace probabilities in (0, 1) by the values of the standard normal distribution below which they lie."""
    load_philox().to_normal(chances)


def locate_lists(places: Ints, bases: Words, slot_of: Ints, block: Ints, row: Ints, lists: Ints) -> int:
    """Write address and length of each list of a batch to `lists` [arrays, 2, n].

    Array `k` has its values at the addresses `bases[places[k, 0]]`, and the int32 offsets of its lists at
    `bases[places[k, 1]]`, by slot. An item has `places[k, 2]` bytes. Blocks, rows and the result are those of
    `gather_arrays`.
    """
    missing: int = load().lists.locate_lists(places, bases, slot_of, block, row, lists)
    return missing


def gather_lists(target: int, places: Ints, lists: Ints) -> None:
    """Copy the lists of each array, one behind the other, to address `target + places[k, 1]`.

    List `i` of array `k` has `lists[k, 1, i]` items of `places[k, 0]` bytes, at address `lists[k, 0, i]`.
    """
    load().lists.gather_lists(target, places, lists)


def order_lanes(lanes: Words, ranges: Ints, stride: int, block: Ints, row: Ints) -> None:
    """Write the block, and the row in it, of lane rows `ranges[k, 0]` to `ranges[k, 1]` of each lane `k`.

    The first one goes to index `ranges[k, 2]` of `block` and `row`, and each next one `stride` further. A lane is
    (addresses of the ends, blocks and shifts of its pieces and of the bounds of its shuffles, number of pieces, number
    of shuffles, key, whether rows are shuffled).
    """
    load().orders.order_lanes(lanes, ranges, stride, block, row)


def merge(nodes: Ints, due: Ints, place: Ints, streams: Words, state: Ints, merged: Ints) -> int:
    """Merge the rows of several datasets, each in its own order, into the order of a mixture.

    `nodes` are the inner nodes of a tree, each after the node that it is a half of: (steps of a cycle, steps of the
    left half, left half, right half). A half is a node, or `-1 - dataset`. `due` counts each node's steps towards the
    next row of its left half. `place` is (first position, end, root, rows of `merged` that are written). `streams` has,
    for each dataset, the addresses of the numbers of its rows and of their columns. `state` [3, datasets] is the
    number of its next row, index of its next row in the stream, and number of rows of the stream. A row that is not in
    the stream belongs to another rank. `merged` [1 + columns, n] gets positions and columns. Returns the rows of
    `merged` that are now written. `due` and `state` advance, so that another tree can continue.
    """
    written: int = load().orders.merge(nodes, due, place, streams, state, merged)
    return written


def locate_windows(windows: Ints, block: Ints, row: Ints, blocks: Ints, runs: Ints, stride: int) -> None:
    """Write start, first real place and run of window `row[i]` of block `block[i]` to `windows` [3, n].

    `windows[0]` holds the shift of each window before. `blocks[0, b]` is the number of the first window of block `b`,
    and `blocks[1, b]` the column of its first run in `runs`: end of the run's windows, the run, start of its first
    window, and the first place that its windows may read.
    """
    load().loops.locate_windows(windows, block, row, blocks, runs, stride)


def are_present(windows: Ints, length: int, line: Ints, is_present: NDArray[np.bool_]) -> bool:
    """Whether all runs that the `length` steps of each of `windows` [3, n] read are present, with the run of each.

    `line[0, r]` is the place of the first step of run `r`.
    """
    found: bool = load().loops.are_present(windows, length, line, is_present)
    return found


def pack_columns(columns: Words, rows: int, packed: NDArray[np.int32] | NDArray[np.int64]) -> None:
    """Interleave `columns`, the addresses of arrays of `rows` items, into `packed` [rows * len(columns)]."""
    load().loops.pack_columns(columns, rows, packed)


def pad(target: int, row_bytes: int, values: int, item_bytes: int, starts: Ints, lengths: NDArray[np.int32]) -> None:
    """Copy `lengths[i]` items from item `starts[i]` at address `values` into row `i` at `target`, then zeros."""
    load().loops.pad(target, row_bytes, values, item_bytes, starts, lengths)


def gather_steps(target: int, view: Ints, line: Ints, windows: Ints) -> None:
    """Copy the same steps of each window to an array at address `target`.

    `view` is (first step, steps, bytes of a step, bytes of a window of the target, row of `line` with the addresses).
    `line[0, r]` is the place of the first step of run `r`. The step at place `p` of run `r` is at address
    `line[view[4], r] + p * view[2]`. A window is (start, first real place, a run before or at that place) in `windows`
    [3, n]. Steps before the first real place become zeros.
    """
    load().loops.gather_steps(target, view, line, windows)


def gather_scaled(out: Floats, view: Ints, scaling: Floats, line: Ints, windows: Ints) -> None:
    """`gather_steps` of some float32 columns: each value as `(value - scaling[0]) * scaling[1]` of its column.

    `view` is (first step, steps, columns of a step, values of a window of `out`, row of `line` with the addresses,
    columns to copy...). Padding is 0.
    """
    load().loops.gather_scaled(out, view, scaling, line, windows)


def fill_windows(
    out: Floats, observed: NDArray[np.uint8], view: Ints, scaling: Floats, line: Ints, windows: Ints
) -> None:
    """Fill the NaNs that `gather_scaled` of the same view left in `out`.

    `scaling[3]` holds the fill of a column: 0 keeps its NaNs. 1 takes the last value before one in its window, and
    without one `scaling[2]`. 2 takes the next value of this view before that. `observed`, if not empty, becomes 1 where
    a value was not filled, and 0 elsewhere, also for padding.
    """
    load().loops.fill_windows(out, observed, view, scaling, line, windows)
