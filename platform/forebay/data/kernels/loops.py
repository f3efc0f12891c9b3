"""Compiled loops over the rows of blocks.

Only this folder depends on the compiler, Numba, and `kernel` imports it late.

Each of these loops passes over rows one by one, which NumPy cannot do: it gathers from one array but not from hundreds
(masking per block reached 0.35 GB/s, `gather` reaches 5). All functions run without the GIL, on addresses and indices
that the caller guarantees to be valid. No lighter dependency was found that is as fast: it would have to be compiled
code of our own, with one wheel per platform.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, int32, int64, types, uint8, uint64, void
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import copy, items_at, prefetch, transpose, zero

Ints = NDArray[np.int64]

_PREFETCHED_ROWS = 8
_LINE_BYTES = 64
_PACKED_ROWS = 64
_PAGE_BYTES = 4096
_TILED_VALUES = 512


def _gather(target: int, row_bytes: int, bases: NDArray[np.uint64], slot: Ints, row: Ints) -> None:
    """Copy rows of one array of blocks.

    Row `row[i]` of the array at address `bases[slot[i]]` goes to row `i` of the array at address `target`.

    All arrays are C-contiguous with rows of `row_bytes` bytes. Rows may be anywhere, so each copy would wait for
    memory. Prefetching the first two cache lines of a row eight rows ahead of its copy nearly halves the time.
    """
    for i in range(len(row)):
        if i + _PREFETCHED_ROWS < len(row):
            ahead = bases[slot[i + _PREFETCHED_ROWS]] + uint64(row[i + _PREFETCHED_ROWS] * row_bytes)
            prefetch(ahead)
            if row_bytes > _LINE_BYTES:
                prefetch(ahead + uint64(_LINE_BYTES))
        copy(target + uint64(i * row_bytes), bases[slot[i]] + uint64(row[i] * row_bytes), uint64(row_bytes))


def _gather_arrays(target: int, layout: Ints, bases: NDArray[np.uint64], slot_of: Ints, block: Ints, row: Ints) -> int:
    """Gather each array of a batch.

    Array `k` has rows of `layout[k, 0]` bytes, and goes to address `target + layout[k, 1]`.

    Output row `i` is row `row[i]` of block `block[i]`, whose arrays are at the addresses `bases[:, slot_of[block[i]]]`.
    Returns -1, or a block that has no slot (below 0). In that case nothing was copied. One call for all arrays, because
    after each call the caller may have to wait for the GIL.
    """
    slot = np.empty(len(block), np.int64)
    for i in range(len(block)):
        slot[i] = slot_of[block[i]]
        if slot[i] < 0:
            return int(block[i])
    for k in range(len(layout)):
        gather(target + uint64(layout[k, 1]), layout[k, 0], bases[k], slot, row)
    return -1


def _locate_windows(windows: Ints, block: Ints, row: Ints, blocks: Ints, runs: Ints, stride: int) -> None:
    """Write the position of each window.

    Start, first real step and run of window `row[i]` of block `block[i]`, into `windows` [3, n].

    `windows[0]` holds the shift of each window before. `blocks` and `runs` have the columns of `WindowIndex`.
    """
    for i in range(len(row)):
        number, low, high = blocks[0, block[i]] + row[i], blocks[1, block[i]], blocks[1, block[i] + 1] - 1
        first = low
        while low < high:
            middle = (low + high) >> 1
            if runs[0, middle] > number:
                high = middle
            else:
                low = middle + 1
        before = runs[0, low - 1] if low > first else blocks[0, block[i]]
        start = runs[2, low] + (number - before) * stride + windows[0, i]
        windows[0, i], windows[1, i], windows[2, i] = start, max(start, runs[3, low]), runs[1, low]


def _are_present(windows: Ints, length: int, line: Ints, is_present: NDArray[Any]) -> bool:
    """Whether all runs of windows are present.

    The runs that the `length` steps of each of `windows` read, with the run of each window.
    """
    for i in range(windows.shape[1]):
        run, stop = windows[2, i], windows[0, i] + length
        if not is_present[run]:
            return False
        while line[0, run + 1] < stop:
            run += 1
            if not is_present[run]:
                return False
    return True


def _pack_columns(columns: NDArray[np.uint64], rows: int, packed: NDArray[Any]) -> None:
    """Interleave `columns` into rows of `packed`.

    `columns` are the addresses of arrays of `rows` items. `packed` has length rows * len(columns).

    Transposes squares of 4 x 4 items, which take a few instructions in registers, over 64 rows at a time, so that input
    and output stay in a near CPU cache. With 100 columns it takes 1.3 times as long as a plain copy
    (docs/internals/data-plane.md).
    """
    width, whole = len(columns), len(columns) // 4 * 4
    item = packed.itemsize
    step, target, inputs = uint64(width * item), uint64(packed.ctypes.data), uint64(columns.ctypes.data)
    for start in range(0, rows, _PACKED_ROWS):
        stop = min(start + _PACKED_ROWS, rows)
        squares = start + (stop - start) // 4 * 4
        for left in range(0, whole, 4):
            for row in range(start, squares, 4):
                at = target + uint64((row * width + left) * item)
                transpose(inputs + uint64(8 * left), uint64(row * item), at, step, packed)
        for left in range(width):
            items = items_at(columns[left], packed)
            for row in range(squares if left < whole else start, stop):
                packed[row * width + left] = items[row]


def _pad(target: int, row_bytes: int, values: int, item_bytes: int, starts: Ints, lengths: NDArray[np.int32]) -> None:
    """Copy and pad lists of items.

    `lengths[i]` items, from item `starts[i]` of the array at address `values` on, go into row `i` at `target`.

    Fills the rest of each row with zeros. A row has `row_bytes` bytes.
    """
    for i in range(len(lengths)):
        row = target + uint64(i * row_bytes)
        num_bytes = uint64(lengths[i] * item_bytes)
        copy(row, values + uint64(starts[i] * item_bytes), num_bytes)
        zero(row + num_bytes, uint64(row_bytes) - num_bytes)


def _prefetch_window(i: int, view: Ints, step_bytes: int, line: Ints, windows: Ints) -> None:
    """Prefetch the window after window `i`.

    The first line of each memory page, as far as its first run goes.

    The processor itself reads ahead within a page, but neither into the next page nor into another window. Windows of
    9 KB that no CPU cache holds take 10 to 20 % less time so. Loading more lines ahead gains nothing.
    """
    if i + 1 >= windows.shape[1]:
        return
    start, run = windows[0, i + 1] + view[0], windows[2, i + 1]
    position, stop = max(start, windows[1, i + 1]), min(start + view[1], line[0, run + 1])
    first, last = line[view[4], run] + position * step_bytes, line[view[4], run] + stop * step_bytes
    while first < last:
        prefetch(uint64(first))
        first = (first // _PAGE_BYTES + 1) * _PAGE_BYTES


def _copy_steps(target: int, source: int, num_bytes: int, like: NDArray[Any]) -> None:
    """Copy bytes by words of the item type of `like`.

    Where no CPU cache holds the target, memcpy of some KB took 330 to 370 us per 3 MB, and this loop 245 to 276.
    """
    to, items, words = items_at(target, like), items_at(source, like), num_bytes // like.itemsize
    for k in range(words):
        to[k] = items[k]
    copied = uint64(words * like.itemsize)
    copy(target + copied, source + copied, uint64(num_bytes) - copied)


def _gather_steps(target: int, view: Ints, line: Ints, windows: Ints) -> None:
    """Copy the same steps of each window.

    Into window `i` of the array at `target`.

    `view` is (first step, steps, bytes of a step, bytes of a window of the target, row of `line` with the addresses).
    `line[0, r]` is the position of the first step of run `r`. The step at position `p` of run `r` is at address
    `line[view[4], r] + p * view[2]`. A window is (start, first real position, a run before or at that position) in
    `windows` [3, n]. Steps before the first real position become zeros.
    """
    skip, steps, step_bytes, window_bytes, number = view
    starts, address = line[0], line[number]
    for i in range(windows.shape[1]):
        prefetch_window(i, view, step_bytes, line, windows)
        position, run = windows[0, i] + skip, windows[2, i]
        stop, to = position + steps, target + uint64(i * window_bytes)
        padded = min(max(windows[1, i] - position, 0), steps)
        zero(to, uint64(padded * step_bytes))
        to += uint64(padded * step_bytes)
        position += padded
        while position < stop:
            while position >= starts[run + 1]:
                run += 1
            copied = min(stop, starts[run + 1]) - position
            copy_steps(to, uint64(address[run] + position * step_bytes), copied * step_bytes, starts)
            to += uint64(copied * step_bytes)
            position += copied


def _gather_scaled(out: NDArray[Any], view: Ints, scaling: NDArray[Any], line: Ints, windows: Ints) -> None:
    """Gather scaled steps of float32 columns.

    As `gather_steps`, with each value as `(value - scaling[0] + rest - scaling[4]) * scaling[1]` of its column.

    `view` is (first step, steps, columns of a step, values of a window of `out`, row of `line` with the addresses, row
    with the addresses of the rests or 0 for no rests, columns to copy...). Padding is 0.
    """
    skip, steps, width, window_values, number = view[0], view[1], view[2], view[3], view[4]
    starts, address, rests, columns = line[0], line[number], line[view[5]], view[6:]
    is_whole = len(columns) == width
    for k in range(len(columns)):
        is_whole = is_whole and columns[k] == k
    tiled = np.empty((3, max(_TILED_VALUES // width, 1) * width if is_whole else 0), np.float32)
    for k in range(tiled.shape[1]):
        tiled[0, k], tiled[1, k], tiled[2, k] = scaling[0, k % width], scaling[1, k % width], scaling[4, k % width]
    for i in range(windows.shape[1]):
        prefetch_window(i, view, 4 * width, line, windows)
        first, run, at = windows[0, i] + skip, windows[2, i], i * window_values
        stop = first + steps
        position = min(max(first, windows[1, i]), stop)
        for k in range(at, at + (position - first) * len(columns)):
            out[k] = 0
        at += (position - first) * len(columns)
        while position < stop:
            while position >= starts[run + 1]:
                run += 1
            source = uint64(address[run] + position * width * 4)
            rest = uint64(rests[run] + position * width * 4) if view[5] else uint64(0)
            count = min(stop, starts[run + 1]) - position
            if is_whole:
                scale_steps(out[at : at + count * width], source, rest, tiled)
            else:
                for step in range(count):
                    for k in range(len(columns)):
                        out[at + step * len(columns) + k] = scaled_value(
                            source, rest, step * width + columns[k], scaling[:, k]
                        )
            at += count * len(columns)
            position += count


def _scaled_value(source: int, rest: int, index: int, scaling: NDArray[Any]) -> Any:
    """Scale the value `index` behind address `source`.

    `rest` is the address of the rests, or 0. `scaling` [5] is of its column.
    """
    items = items_at(source, scaling)
    low = items_at(rest, scaling)[index] if rest else float32(0)
    return ((items[index] - scaling[0]) + (low - scaling[4])) * scaling[1]


def _scale_steps(out: NDArray[Any], source: int, rest: int, tiled: NDArray[Any]) -> None:
    """Copy scaled values from address `source`.

    Each as `(value - tiled[0] + rest - tiled[2]) * tiled[1]`, with the rests at address `rest`, or none for 0. `tiled`
    repeats whole steps.

    The inner loops have no index of a column, so that the compiler uses vector instructions: 6 GB/s with seven columns
    in place of 2.
    """
    items, to = items_at(source, out), items_at(uint64(out.ctypes.data), out)
    shift, factor = items_at(uint64(tiled[0].ctypes.data), out), items_at(uint64(tiled[1].ctypes.data), out)
    shift_rest, rests = items_at(uint64(tiled[2].ctypes.data), out), items_at(rest or source, out)
    for begin in range(0, len(out), tiled.shape[1]):
        count = min(tiled.shape[1], len(out) - begin)
        if rest:
            for k in range(count):
                to[begin + k] = ((items[begin + k] - shift[k]) + (rests[begin + k] - shift_rest[k])) * factor[k]
        else:
            for k in range(count):
                to[begin + k] = ((items[begin + k] - shift[k]) - shift_rest[k]) * factor[k]


def _value_before(view: Ints, scaling: NDArray[Any], line: Ints, window: Ints, column: int) -> Any:
    """Last scaled value of a column before the view.

    Before the view's first step in a window. NaN if there is none.
    """
    position, run = max(window[0] + view[0], window[1]) - 1, window[2]
    starts, address, rests, width = line[0], line[view[4]], line[view[5]], view[2]
    while starts[run + 1] <= position:
        run += 1
    while position >= window[1]:
        while position < starts[run]:
            run -= 1
        source = uint64(address[run] + position * width * 4)
        rest = uint64(rests[run] + position * width * 4) if view[5] else uint64(0)
        value = scaled_value(source, rest, view[6 + column], scaling[:, column])
        if not np.isnan(items_at(source, scaling)[view[6 + column]]):
            return value
        position -= 1
    return np.float32(np.nan)


def _next_value(values: NDArray[Any]) -> Any:
    """First of `values` other than NaN.

    NaN if there is none.
    """
    for value in values:
        if not np.isnan(value):
            return value
    return np.float32(np.nan)


def _has_nan(values: NDArray[Any]) -> bool:
    """Whether `values` has a NaN.

    Looks at all of them, which the compiler does with vector instructions.

    Most windows have none: `fill_windows` then takes a tenth of the time of its walk by columns.
    """
    found = False
    for k in range(len(values)):
        found |= values[k] != values[k]
    return found


def _fill_windows(
    out: NDArray[Any], observed: NDArray[Any], view: Ints, scaling: NDArray[Any], line: Ints, windows: Ints
) -> None:
    """Fill the NaNs of `gather_scaled` in `out`.

    Of the same view.

    `scaling[3]` holds the fill of a column: 0 keeps its NaNs. 1 takes the last value before one in its window, and
    without one `scaling[2]`, which is scaled. 2 takes the next value of this view before that. `observed`, if not
    empty, becomes 1 where a value was not filled, and 0 elsewhere, also for padding.
    """
    skip, steps, window_values, width = view[0], view[1], view[3], len(view) - 6
    for i in range(windows.shape[1]):
        padded = min(max(windows[1, i] - windows[0, i] - skip, 0), steps)
        begin, stop = i * window_values + padded * width, i * window_values + steps * width
        filled = stop if has_nan(out[begin:stop]) else begin
        if len(observed):
            observed[i * window_values : begin] = 0
            for each in range(begin, stop):
                observed[each] = not np.isnan(out[each])
        for k in range(width):
            last = float32(np.nan)
            for each in range(begin + k, filled if scaling[3, k] else begin, width):
                if np.isnan(out[each]):
                    if np.isnan(last):
                        last = value_before(view, scaling, line, windows[:, i], k)
                    if np.isnan(last) and scaling[3, k] > 1:
                        last = next_value(out[each:stop:width])
                    if np.isnan(last):
                        last = scaling[2, k]
                    out[each] = last
                last = out[each]


gather = kernel(void(uint64, int64, uint64[::1], int64[::1], int64[::1]))(_gather)
gather_arrays = kernel(int64(uint64, int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64[::1]))(_gather_arrays)
locate_windows = kernel(void(int64[:, ::1], int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64))(
    _locate_windows
)
are_present = kernel(types.boolean(int64[:, ::1], int64, int64[:, ::1], types.boolean[::1]))(_are_present)
pack_columns_4 = kernel(void(uint64[::1], int64, int32[::1]))(_pack_columns)
pack_columns_8 = kernel(void(uint64[::1], int64, int64[::1]))(_pack_columns)
pad = kernel(void(uint64, int64, uint64, int64, int64[::1], int32[::1]))(_pad)
prefetch_window = part(void(int64, int64[::1], int64, int64[:, ::1], int64[:, ::1]))(_prefetch_window)
scale_steps = part(void(float32[::1], uint64, uint64, float32[:, ::1]))(_scale_steps)
scaled_value = part(float32(uint64, uint64, int64, float32[:]))(_scaled_value)
copy_steps = part(void(uint64, uint64, int64, int64[::1]))(_copy_steps)
gather_steps = kernel(void(uint64, int64[::1], int64[:, ::1], int64[:, ::1]))(_gather_steps)
gather_scaled = kernel(void(float32[::1], int64[::1], float32[:, ::1], int64[:, ::1], int64[:, ::1]))(_gather_scaled)
value_before = part(float32(int64[::1], float32[:, ::1], int64[:, ::1], int64[:], int64))(_value_before)
next_value = part(float32(float32[:]))(_next_value)
has_nan = part(types.boolean(float32[::1]))(_has_nan)
fill_windows = kernel(void(float32[::1], uint8[::1], int64[::1], float32[:, ::1], int64[:, ::1], int64[:, ::1]))(
    _fill_windows
)
