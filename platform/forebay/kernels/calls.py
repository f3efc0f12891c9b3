"""The kernels as functions. The first call of any loads all, from Numba's cache or by compiling them.

Numba and its kernels take 1 CPU second to import. A process that moves no row - the command line, a driver, the
controller of Ray Train - never calls one.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@cache
def load() -> ModuleType:
    """Load all kernels. Call it before other threads start: a process forked during the first call deadlocks."""
    from forebay.kernels import loops  # noqa: PLC0415

    return loops


def gather_arrays(target: int, places: Ints, bases: NDArray[np.uint64], slot_of: Ints, block: Ints, row: Ints) -> int:
    """Gather each array of a batch. Returns -1, or a block without a slot (then nothing was copied).

    `target` is an address. Array `k` has rows of `places[k, 0]` bytes and goes to `target + places[k, 1]`. Output row
    `i` is row `row[i]` of block `block[i]`, whose arrays are at the addresses `bases[:, slot_of[block[i]]]`.
    """
    missing: int = load().gather_arrays(target, places, bases, slot_of, block, row)
    return missing


def walk(words: Ints, bits: int, size: int, keys: NDArray[np.uint64]) -> None:
    """Replace each of `words`, below `size`, by its image under a keyed bijection of `range(size)`.

    `bits` is the width of `size - 1`, at most 32; `keys` holds a 64-bit key per round.
    """
    load().walk(words, bits, size, keys)


def locate(line: Ints, ends: Ints, block_of: Ints, shift_of: Ints, block: Ints, row: Ints) -> None:
    """For each place on a line of pieces that end at `ends`: write the piece's block, and the place plus its shift."""
    load().locate(line, ends, block_of, shift_of, block, row)


def locate_windows(windows: Ints, block: Ints, row: Ints, blocks: Ints, runs: Ints, stride: int) -> None:
    """Write start, first real place and run of window `row[i]` of block `block[i]` to `windows` [3, n].

    `windows[0]` holds the shift of each window before. `blocks[0, b]` is the number of the first window of block `b`,
    and `blocks[1, b]` the column of its first run in `runs`: end of the run's windows, the run, start of its first
    window, and the first place that its windows may read.
    """
    load().locate_windows(windows, block, row, blocks, runs, stride)


def are_present(windows: Ints, length: int, line: Ints, is_present: NDArray[np.bool_]) -> bool:
    """Whether all runs that the `length` steps of each of `windows` [3, n] read are present, with the run of each.

    `line[0, r]` is the place of the first step of run `r`.
    """
    found: bool = load().are_present(windows, length, line, is_present)
    return found


def pack_columns(columns: NDArray[np.uint64], rows: int, packed: NDArray[np.int32] | NDArray[np.int64]) -> None:
    """Interleave `columns`, the addresses of arrays of `rows` items, into `packed` [rows * len(columns)]."""
    load().pack_columns(columns, rows, packed)


def pad(target: int, row_bytes: int, values: int, item_bytes: int, starts: Ints, lengths: NDArray[np.int32]) -> None:
    """Copy `lengths[i]` items from item `starts[i]` at address `values` into row `i` at `target`, then zeros."""
    load().pad(target, row_bytes, values, item_bytes, starts, lengths)


def gather_steps(target: int, view: Ints, line: Ints, windows: Ints) -> None:
    """Copy the same steps of each window to an array at address `target`.

    `view` is (first step, steps, bytes of a step, bytes of a window of the target, row of `line` with the addresses).
    `line[0, r]` is the place of the first step of run `r`. The step at place `p` of run `r` is at address
    `line[view[4], r] + p * view[2]`. A window is (start, first real place, a run before or at that place) in `windows`
    [3, n]. Steps before the first real place become zeros.
    """
    load().gather_steps(target, view, line, windows)


def gather_scaled(out: Floats, view: Ints, scaling: Floats, line: Ints, windows: Ints) -> None:
    """`gather_steps` of some float32 columns: each value as `(value - scaling[0]) * scaling[1]` of its column.

    `view` is (first step, steps, columns of a step, values of a window of `out`, row of `line` with the addresses,
    columns to copy...). Padding is 0.
    """
    load().gather_scaled(out, view, scaling, line, windows)


def fill_windows(
    out: Floats, observed: NDArray[np.uint8], view: Ints, scaling: Floats, line: Ints, windows: Ints
) -> None:
    """Fill the NaNs that `gather_scaled` of the same view left in `out`.

    `scaling[3]` holds the fill of a column: 0 keeps its NaNs. 1 takes the last value before one in its window, and
    without one `scaling[2]`. 2 takes the next value of this view before that. `observed`, if not empty, becomes 1 where
    a value was not filled, and 0 elsewhere, also for padding.
    """
    load().fill_windows(out, observed, view, scaling, line, windows)
