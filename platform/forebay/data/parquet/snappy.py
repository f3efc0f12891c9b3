"""Compiled Snappy decompression.

By format_description.txt of google/snappy. Trusts nothing in what it reads.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import copy, items_at
from forebay.data.parquet.page_headers import Int, varint

_BYTES = np.zeros(1, np.uint8)
_LITERAL = -1
_SHORT, _HALF = 16, 8
"""Short elements are copied as 16 bytes: what is too much is overwritten by the next ones."""
_MOST_READ, _MOST_WRITTEN = 1 + _SHORT, 64 + _SHORT


def _read_tag(source: Int, at: Int, length: Int) -> tuple[Int, Int, Int]:
    """Length, distance and end of a Snappy element's tag.

    A length of 0 means damage. A distance of `_LITERAL`: the bytes follow the tag.
    """
    memory = items_at(source, _BYTES)
    tag = np.int64(memory[at])
    kind, count, at = tag & 3, (tag >> 2) + 1, at + 1
    extra: Int = max(count - 60, 0) if kind == 0 else (kind if kind < 3 else 4)
    if extra > length - at:
        return 0, 0, 0
    number: Int = 0
    for i in range(extra):
        number |= np.int64(memory[at + i]) << (8 * i)
    at += extra
    if kind == 0:
        return (number + 1 if extra else count), _LITERAL, at
    if kind == 1:
        return ((tag >> 2) & 7) + 4, number | (tag >> 5) << 8, at
    return count, number, at


def _copy_short(at: Int, target: Int, made: Int) -> tuple[Int, Int]:
    """Copy a short element behind `made` bytes at `target`.

    Returns the bytes of the element and of its copy, or zeros for an element of another kind. Reads up to `_MOST_READ`
    bytes, and writes up to `_MOST_WRITTEN`.
    """
    memory, to = items_at(at, _BYTES), target + made
    tag = np.int64(memory[0])
    kind, count, back = tag & 3, (tag >> 2) + 1, np.int64(memory[1])
    if kind == 0 and count <= _SHORT:
        copy(to, at + 1, _SHORT)
        return 1 + count, count
    # Without a branch: in ids, either kind may come next, and a wrong prediction takes longer than several elements.
    is_near = np.int64(kind == 1)
    far = np.int64(memory[2]) << 8
    back |= far + is_near * ((tag >> 5 << 8) - far)
    count += is_near * ((tag >> 2 & 7) + 4 - count)
    if kind in (0, 3) or back < _HALF or back > made:
        return 0, 0
    copy(to, to - back, _HALF)
    copy(to + _HALF, to + _HALF - back, _HALF)
    for done in range(_SHORT, count, _HALF):
        copy(to + done, to + done - back, _HALF)
    return 1 + kind, count


def _copy_any(source: Int, at: Int, length: Int, target: Int, made: Int, size: Int) -> tuple[Int, Int]:
    """Copy any element behind `made` bytes of `size`.

    It is at index `at` of the source. Returns the index behind it, and the bytes made.

    Zeros for bytes that are not Snappy or do not fit.
    """
    count, back, at = read_tag(source, at, length)
    if count == 0 or count > size - made:
        return 0, 0
    if back == _LITERAL:
        if count > length - at:
            return 0, 0
        copy(target + made, source + at, count)
        return at + count, made + count
    if back == 0 or back > made:
        return 0, 0
    if back >= count:
        copy(target + made, target + made - back, count)
    else:  # the copy reads what it writes
        out = items_at(target, _BYTES)
        for i in range(made, made + count):
            out[i] = out[i - back]
    return at, made + count


def _unsnappy(source: Int, length: Int, target: Int, capacity: Int) -> Int:
    """Decompress Snappy.

    Returns the number of bytes, or -1 for bytes that are not Snappy or do not fit.
    """
    stated, start = varint(source, source + length)
    if start == 0 or stated > np.uint64(capacity):
        return -1
    size, at, made = np.int64(stated), start - source, 0
    while at < length:
        read, written = 0, 0
        if length - at >= _MOST_READ and size - made >= _MOST_WRITTEN:
            read, written = copy_short(source + at, target, made)
        if read:
            at, made = at + read, made + written
        else:
            at, made = copy_any(source, at, length, target, made, size)
            if at == 0:
                return -1
    return made if made == size else -1


read_tag = part(types.UniTuple(int64, 3)(int64, int64, int64))(_read_tag)
copy_short = part(types.UniTuple(int64, 2)(int64, int64, int64))(_copy_short)
copy_any = part(types.UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64))(_copy_any)
unsnappy = kernel(int64(int64, int64, int64, int64))(_unsnappy)
