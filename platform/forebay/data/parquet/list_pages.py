"""Compiled decoder of lists of numbers.

Reads the pages of Parquet columns: lists of numbers of 4 or 8 bytes, without nulls in the lists.

Trusts nothing in the pages, as `pages` does. A null within a list, or whatever else it does not know, is a `False`
(docs/internals/data-plane.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64, types, uint8, uint64
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import items_at, lowest_one, ones_of
from forebay.data.parquet.page_headers import (
    DEFINITION,
    REPETITION,
    RLE,
    SIZE,
    STORED_SIZE,
    TYPE,
    VALUES,
    Int,
    Ints,
    Work,
    read_header,
)
from forebay.data.parquet.pages import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    ENTRIES,
    IS_OPTIONAL,
    IS_SNAPPY,
    IS_TEXT,
    ITEM_BYTES,
    PAGE_WORK,
    ROOM,
    ROWS,
    SCRATCH,
    SLACK,
    Bytes,
    levels_end,
    next_run,
    open_page,
    read_dictionary,
    read_encoded,
)

# Options of a list column behind those that `pages` has. Entries are the values, and the lists without any.
_LEVEL, _ENTRIES, _OFFSETS, _NULLS, _TARGET, _MARKS, _MARK_BYTES = (PAGE_WORK + k for k in range(7))
# Entries, lists and values so far, and whether the last entry was a value.
_SEEN, _LISTS, _MADE, _IS_VALUE = (PAGE_WORK + k for k in range(7, 11))
LIST_WORK = PAGE_WORK + 11

_BYTES = np.zeros(1, np.uint8)
_SHORT = np.zeros(1, np.int32)
_WORDS = np.zeros(1, np.uint64)
_NONE, _ONE = np.uint64(0), np.uint64(1)
_ALL = ~_NONE
_WORD = 64
_CHUNK = 32
"""Levels that are compared at a time: they fill 64 bits if they have two bits."""
_EVEN = np.uint64(0x5555555555555555)
_SQUEEZES = (
    (np.uint64(1), np.uint64(0x3333333333333333)),
    (np.uint64(2), np.uint64(0x0F0F0F0F0F0F0F0F)),
    (np.uint64(4), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(8), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(16), np.uint64(0x00000000FFFFFFFF)),
)
"""Shifts and masks that bring every second bit of 64 together."""


def _lowest(count: Int) -> Any:
    """A uint64 whose lowest `count` bits are 1."""
    return _ALL if count >= _WORD else (_ONE << np.uint64(max(count, 0))) - _ONE


def _equal_levels(word: Any, width: Int, wanted: Int) -> Any:
    """Bit mask of the levels that are `wanted`, uint64.

    `word` packs 32 levels of `width` bits. Bit i is 1 where level i is `wanted`.
    """
    if width == 1:
        return word if wanted else ~word
    other = word ^ (_EVEN * np.uint64(3 - wanted))  # both bits are 1 where the level is equal
    found = other & (other >> _ONE) & _EVEN
    for shift, mask in _SQUEEZES:
        found = (found | found >> shift) & mask
    return found


def _mark_levels(at: Int, end: Int, count: Int, width: Int, wanted: Int, marks: Int) -> Int:
    """Write a bit mask of `count` levels to address `marks`.

    The levels have 1 or 2 bits and come in runs. A bit is 1 where its level is `wanted`.

    Zeros follow up to 64 bits further. Returns the number of ones, or -1 for damaged runs. `SLACK` bytes after `end`
    are readable.
    """
    position, ones = 0, _NONE
    while position < count:
        values, at, length, is_packed = next_run(at, end, width)
        if values == 0:
            return -1
        level = np.int64(items_at(at, _BYTES)[0])
        if not is_packed and level >> width:
            return -1
        word, stop = _ALL if level == wanted else _NONE, min(position + values, count)
        source = at
        while position < stop:
            if is_packed:
                word = equal_levels(items_at(source, _WORDS)[0], width, wanted)
                source += _CHUNK // 8 * width
            to = marks + (position >> 3)
            kept = np.uint64(items_at(to, _BYTES)[0]) & lowest(position & 7)
            word_here = word & lowest(min(_CHUNK, stop - position))
            items_at(to, _WORDS)[0] = kept | word_here << np.uint64(position & 7)
            ones += ones_of(word_here)
            position = min(position + _CHUNK, stop)
        at += length
    to = marks + (position >> 3)
    items_at(to, _WORDS)[0] = np.uint64(items_at(to, _BYTES)[0]) & lowest(position & 7)
    items_at(to, _WORDS)[1] = _NONE
    return np.int64(ones)


def _mark_lists(begin: Int, count: Int, end: Int, work: Work) -> tuple[Int, Int]:
    """Mark values and null lists by their levels.

    There are `count` entries. Returns the number of both, or -1.
    """
    width: Int = 1 if work[_LEVEL] == 1 else 2
    marks, others = work[_MARKS] + work[_MARK_BYTES], work[_MARKS] + 2 * work[_MARK_BYTES]
    values = mark_levels(begin, end, count, width, work[_LEVEL], marks)
    if values in (count, -1):
        return values, 0
    left, nulls = count - values - mark_levels(begin, end, count, width, work[IS_OPTIONAL], others), 0
    if left and work[IS_OPTIONAL]:
        nulls = mark_levels(begin, end, count, width, 0, others)
    return values if left == nulls else -1, nulls


def _place_lists(count: Int, has_nulls: bool, work: Work) -> bool:
    """Write the offset of each list among the values.

    From the marks of `count` entries.
    """
    offsets, is_null = items_at(work[_OFFSETS], _SHORT), items_at(work[_NULLS], _BYTES)
    starts, values = work[_MARKS], work[_MARKS] + work[_MARK_BYTES]
    nulls = values + work[_MARK_BYTES]
    row, made, before = work[_LISTS], work[_MADE], np.uint64(work[_IS_VALUE])
    for position in range(0, count, _WORD):
        at = position >> 3
        begun, marked = items_at(starts + at, _WORDS)[0], items_at(values + at, _WORDS)[0]
        # An entry that begins no list is a value, and follows one.
        if ~begun & ~(marked & (marked << _ONE | before)) & lowest(count - position):
            return False
        before = marked >> np.uint64(_WORD - 1)
        if np.int64(ones_of(begun)) > work[ROWS] - row:
            return False
        null_here = items_at(nulls + at, _WORDS)[0] if has_nulls else _NONE
        while begun:
            bit = lowest_one(begun)
            offsets[row] = made + np.int64(ones_of(marked & ((_ONE << bit) - _ONE)))
            is_null[row] = null_here >> bit & _ONE
            begun &= begun - _ONE
            row += 1
        made += np.int64(ones_of(marked))
    if count:
        last = count - 1
        before = items_at(values + (last >> 3), _BYTES)[0] >> np.uint64(last & 7) & _ONE
    work[_LISTS], work[_MADE], work[_IS_VALUE] = row, made, before
    return True


def _read_lists(work: Work) -> bool:
    """Decode the page in the scratch memory."""
    begin, end, count = work[SCRATCH], work[SCRATCH] + work[SIZE], work[VALUES]
    levels = levels_end(begin, end)
    values = levels_end(levels, end) if levels else 0
    if values == 0 or work[REPETITION] != RLE or work[DEFINITION] != RLE:
        return False
    if mark_levels(begin + 4, levels, count, 1, 0, work[_MARKS]) < 0:
        return False
    made, nulls = mark_lists(levels + 4, count, values, work)
    target = work[_TARGET] + work[_MADE] * work[ITEM_BYTES]
    if made < 0 or not place_lists(count, nulls > 0, work):
        return False
    return bool(read_encoded(values, made, work, target))


def _decode_pages(at: Int, end: Int, work: Work) -> bool:
    """Decode the column chunk from `at` to `end`."""
    is_right = True
    while is_right and at < end:
        at = read_header(at, end, work)
        if at == 0:
            return False
        if work[TYPE] == DICTIONARY_PAGE and work[_SEEN] == 0:
            is_right = read_dictionary(at, work)
        elif work[TYPE] == DATA_PAGE and work[VALUES] <= work[_ENTRIES] - work[_SEEN]:
            is_right = open_page(at, work, work[SCRATCH], work[ROOM])
            is_right = is_right and read_lists(work)
            work[_SEEN] += work[VALUES]
        else:
            return False
        at += work[STORED_SIZE]
    return bool(is_right and work[_SEEN] == work[_ENTRIES] and work[_LISTS] == work[ROWS])


def _decode_lists(
    chunk: Ints, offsets: NDArray[Any], is_null: Bytes, marks: Bytes, scratch: Bytes, memory: Ints
) -> Int:
    """Decode a column chunk of lists.

    Returns the number of its values, or -1 if it did not decode it.

    `chunk` is (address, bytes, whether lists may be null, whether Snappy compressed it, level of a value, entries,
    target). `offsets` [rows + 1] and `is_null` [rows] are of its lists. The target has room for as
    many values as entries, and `marks` for three bits of each entry and 54 bytes more.
    """
    work = items_at(memory.ctypes.data, memory)
    work[ROWS], work[SCRATCH], work[ROOM], work[IS_TEXT] = len(is_null), scratch.ctypes.data, len(scratch) - SLACK, 0
    work[IS_OPTIONAL], work[IS_SNAPPY], work[_LEVEL], work[_ENTRIES] = chunk[2], chunk[3], chunk[4], chunk[5]
    work[_OFFSETS], work[_NULLS], work[_TARGET] = offsets.ctypes.data, is_null.ctypes.data, chunk[6]
    work[_MARKS], work[_MARK_BYTES] = marks.ctypes.data, len(marks) // 3
    work[ENTRIES], work[_SEEN], work[_LISTS], work[_MADE], work[_IS_VALUE] = 0, 0, 0, 0, 0
    if work[_MARK_BYTES] < chunk[5] // 8 + 18 or not decode_pages(chunk[0], chunk[0] + chunk[1], work):
        return -1
    offsets[len(is_null)] = work[_MADE]
    return work[_MADE]


_work = types.CPointer(int64)
lowest = part(uint64(int64))(_lowest)
equal_levels = part(uint64(uint64, int64, int64))(_equal_levels)
mark_levels = part(int64(int64, int64, int64, int64, int64, int64))(_mark_levels)
mark_lists = part(types.UniTuple(int64, 2)(int64, int64, int64, _work))(_mark_lists)
place_lists = part(types.boolean(int64, types.boolean, _work))(_place_lists)
read_lists = part(types.boolean(_work))(_read_lists)
decode_pages = part(types.boolean(int64, int64, _work))(_decode_pages)
decode_lists = kernel(int64(int64[::1], int32[::1], uint8[::1], uint8[::1], uint8[::1], int64[::1]))(_decode_lists)
