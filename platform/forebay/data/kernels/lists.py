"""Compiled loops over lists of different lengths.

Their values follow each other without padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint64, void
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel
from forebay.data.kernels.intrinsics import copy, items_at, prefetch

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_PREFETCHED_LISTS = 8
_LINE_BYTES = 64


def _locate_lists(layout: Ints, bases: Words, slot_of: Ints, block: Ints, row: Ints, lists: NDArray[Any]) -> int:
    """Write address and length of each list.

    List `row[i]` of block `block[i]` goes to `lists[k, 0, i]` and `lists[k, 1, i]`.

    Array `k` has items of `layout[k, 2]` bytes. The values of a block in slot `s` are at address
    `bases[layout[k, 0], s]`, and the int32 offsets of its lists among them at `bases[layout[k, 1], s]`. Returns -1, or
    a block that has no slot (below 0).
    """
    slot = np.empty(len(block), np.int64)
    for i in range(len(block)):
        slot[i] = slot_of[block[i]]
        if slot[i] < 0:
            return int(block[i])
    like = np.empty(0, np.int32)
    for k in range(len(layout)):
        values, bounds, item_bytes = bases[layout[k, 0]], bases[layout[k, 1]], layout[k, 2]
        for i in range(len(row)):
            if i + _PREFETCHED_LISTS < len(row):
                ahead = i + _PREFETCHED_LISTS
                prefetch(bounds[slot[ahead]] + uint64(row[ahead] * 4))
            offsets = items_at(bounds[slot[i]], like)
            start = int64(offsets[row[i]])
            lists[k, 0, i] = int64(values[slot[i]]) + start * item_bytes
            lists[k, 1, i] = offsets[row[i] + 1] - start
    return -1


def _gather_lists(target: int, layout: Ints, lists: NDArray[Any]) -> None:
    """Copy the lists of array `k` without gaps.

    To address `target + layout[k, 1]`.

    List `i` has `lists[k, 1, i]` items of `layout[k, 0]` bytes, at address `lists[k, 0, i]`.
    """
    for k in range(len(layout)):
        to, item_bytes = target + uint64(layout[k, 1]), layout[k, 0]
        for i in range(lists.shape[2]):
            if i + _PREFETCHED_LISTS < lists.shape[2]:
                ahead = uint64(lists[k, 0, i + _PREFETCHED_LISTS])
                prefetch(ahead)
                prefetch(ahead + uint64(_LINE_BYTES))
            num_bytes = uint64(lists[k, 1, i] * item_bytes)
            copy(to, uint64(lists[k, 0, i]), num_bytes)
            to += num_bytes


locate_lists = kernel(int64(int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64[::1], int64[:, :, ::1]))(
    _locate_lists
)
gather_lists = kernel(void(uint64, int64[:, ::1], int64[:, :, ::1]))(_gather_lists)
