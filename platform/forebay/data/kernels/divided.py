"""Compiled gathers that several threads share.

A thread of `serve` waits for parts of a gather, and copies them, inside one compiled call: it never takes the GIL. So a
batch takes the GIL as often as with one thread, and a trainer in Python waits no longer for it.

The threads wait in functions of the C library (pthread_mutex, pthread_cond), which Linux and macOS have. A thread that
the system runs late finds fewer parts left, or none, and the caller does not wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, int32, int64, types, uint64, void
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import copy, items_at, prefetch
from forebay.data.kernels.loops import gather

Ints = NDArray[np.int64]

_PREFETCHED_LISTS = 8
_LINE_BYTES = 64

# A mutex and two conditions of the C library, all zero at first. They take 40 to 64 bytes.
_WORK, _DONE = 128, 256
# Words behind them: what is shared under the mutex, and one gather. The caller sets its target and the rows of a part.
_CLOSED, _NEXT, _PARTS, _RUNNING = 48, 49, 50, 51
TARGET, PART_ROWS = 52, 53
_LAYOUT, _ARRAYS, _ROWS = 54, 55, 56
_BASES, _SLOTS, _SLOT, _ROW = 57, 58, 59, 60
_LISTS, _STARTS = 61, 62
STATE_WORDS = 64

_lock = types.ExternalFunction("pthread_mutex_lock", int32(uint64))
_unlock = types.ExternalFunction("pthread_mutex_unlock", int32(uint64))
_wait = types.ExternalFunction("pthread_cond_wait", int32(uint64, uint64))
_wake_all = types.ExternalFunction("pthread_cond_broadcast", int32(uint64))


def _copy_part(state: Any, part: int) -> None:
    """Copy one part of the rows of all plain arrays.

    Or of the lists of one array, if the gather is one of lists.
    """
    arrays, rows, part_rows = state[_ARRAYS], state[_ROWS], state[PART_ROWS]
    if state[_LISTS]:
        num_parts = (rows + part_rows - 1) // part_rows
        k, first = part // num_parts, part % num_parts * part_rows
        copy_lists(state, k, first, min(first + part_rows, rows), items_at(uint64(state[_STARTS]), state)[part])
        return
    first = part * part_rows
    count = min(first + part_rows, rows) - first
    layout, words = items_at(uint64(state[_LAYOUT]), state), state.view(np.uint64)
    slot = carray(items_at(uint64(state[_SLOT] + 8 * first), state), (count,))
    row = carray(items_at(uint64(state[_ROW] + 8 * first), state), (count,))
    for k in range(arrays):
        row_bytes, start = layout[2 * k], layout[2 * k + 1]
        bases = carray(items_at(uint64(state[_BASES] + 8 * k * state[_SLOTS]), words), (state[_SLOTS],))
        gather(uint64(state[TARGET] + start + first * row_bytes), row_bytes, bases, slot, row)


def _copy_lists(state: Any, k: int, first: int, stop: int, to: int) -> None:
    """Copy lists `first` to `stop` of array `k` without gaps.

    To address `to`.
    """
    rows, item_bytes = state[_ROWS], items_at(uint64(state[_LAYOUT]), state)[2 * k]
    address = items_at(uint64(state[_LISTS] + 16 * k * rows), state)
    lengths = items_at(uint64(state[_LISTS] + 16 * k * rows + 8 * rows), state)
    for i in range(first, stop):
        if i + _PREFETCHED_LISTS < stop:
            ahead = uint64(address[i + _PREFETCHED_LISTS])
            prefetch(ahead)
            prefetch(ahead + uint64(_LINE_BYTES))
        copy(uint64(to), uint64(address[i]), uint64(lengths[i] * item_bytes))
        to += lengths[i] * item_bytes


def _serve(state: Any) -> None:
    """Copy parts of gathers until `stop`."""
    at = uint64(state.ctypes.data)
    _lock(at)
    while True:
        while state[_NEXT] < state[_PARTS]:
            take_part(state)
        if state[_CLOSED]:
            break
        _wait(at + uint64(_WORK), at)
    _unlock(at)


def _take_part(state: Any) -> None:
    """Take the next part under the mutex, and copy it outside."""
    at, part = uint64(state.ctypes.data), state[_NEXT]
    state[_NEXT] += 1
    state[_RUNNING] += 1
    _unlock(at)
    copy_part(state, part)
    _lock(at)
    state[_RUNNING] -= 1
    if state[_RUNNING] == 0 and state[_NEXT] >= state[_PARTS]:
        _wake_all(at + uint64(_DONE))


def _divide(state: Any, parts: int) -> None:
    """Copy all parts of a gather.

    Together with the threads of `serve`.
    """
    at = uint64(state.ctypes.data)
    _lock(at)
    state[_NEXT], state[_PARTS] = 0, parts
    _wake_all(at + uint64(_WORK))
    while state[_NEXT] < state[_PARTS]:
        take_part(state)
    while state[_RUNNING]:
        _wait(at + uint64(_DONE), at)
    state[_NEXT], state[_PARTS] = 0, 0
    _unlock(at)


def _stop(state: Any) -> None:
    """End all calls of `serve`."""
    at = uint64(state.ctypes.data)
    _lock(at)
    state[_CLOSED] = 1
    _wake_all(at + uint64(_WORK))
    _unlock(at)


def _gather_arrays(state: Any, layout: Any, bases: Any, slot_of: Ints, block: Ints, row: Any) -> int:
    """Gather each array of a batch, as `loops.gather_arrays`.

    To address `state[TARGET]`, in parts of `state[PART_ROWS]` rows.
    """
    slot = np.empty(len(block), np.int64)
    for i in range(len(block)):
        slot[i] = slot_of[block[i]]
        if slot[i] < 0:
            return int(block[i])
    state[_LAYOUT], state[_ARRAYS], state[_ROWS], state[_LISTS] = layout.ctypes.data, len(layout), len(row), 0
    state[_BASES], state[_SLOTS] = bases.ctypes.data, bases.shape[1]
    state[_SLOT], state[_ROW] = slot.ctypes.data, row.ctypes.data
    divide(state, (len(row) + state[PART_ROWS] - 1) // state[PART_ROWS])
    state[_SLOT] = len(slot)  # used here, so that its memory is not freed before
    return -1


def _gather_lists(state: Any, layout: Any, lists: Any) -> None:
    """Copy the lists of each array, as `lists.gather_lists`.

    To address `state[TARGET]`, in parts of `state[PART_ROWS]` lists of an array.
    """
    rows, part_rows = lists.shape[2], state[PART_ROWS]
    num_parts = (rows + part_rows - 1) // part_rows
    starts = np.empty(len(layout) * num_parts, np.int64)
    for k in range(len(layout)):
        to = state[TARGET] + layout[k, 1]
        for number in range(num_parts):
            starts[k * num_parts + number] = to
            items = int64(0)
            for i in range(number * part_rows, min((number + 1) * part_rows, rows)):
                items += lists[k, 1, i]
            to += items * layout[k, 0]
    state[_LAYOUT], state[_ARRAYS], state[_ROWS] = layout.ctypes.data, len(layout), rows
    state[_LISTS], state[_STARTS] = lists.ctypes.data, starts.ctypes.data
    divide(state, len(starts))
    state[_STARTS] = len(starts)  # as above


copy_lists = part(void(int64[::1], int64, int64, int64, int64))(_copy_lists)
copy_part = part(void(int64[::1], int64))(_copy_part)
take_part = part(void(int64[::1]))(_take_part)
divide = part(void(int64[::1], int64))(_divide)
serve = kernel(void(int64[::1]))(_serve)
stop = kernel(void(int64[::1]))(_stop)
gather_arrays = kernel(int64(int64[::1], int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64[::1]))(
    _gather_arrays
)
gather_lists = kernel(void(int64[::1], int64[:, ::1], int64[:, :, ::1]))(_gather_lists)
