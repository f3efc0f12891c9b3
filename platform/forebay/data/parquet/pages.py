"""Compiled decoder of columns of numbers and of texts.

Reads the pages of Parquet columns without nulls: numbers of 4 or 8 bytes, plain or by a dictionary, and texts by a
dictionary. Of texts it gives the dictionary and the indices into it. Pages of plain texts, which follow if a dictionary
became too large, are a `False` (docs/internals/data-plane.md).

Trusts nothing in the pages. Whatever it does not know, and whatever does not fit, is a `False` for that column: then
Arrow's decoder reads the column, and says what is wrong with it. Never reads or writes outside of the memory it was
given (docs/adr/0083-own-decoder-of-numbers.md). `list_pages` reads lists with the same loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64, types, uint8
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import copy, items_at
from forebay.data.parquet.page_headers import (
    DEFINITION,
    ENCODING,
    HEADER_WORK,
    MOST_VALUES,
    RLE,
    SIZE,
    STORED_SIZE,
    TYPE,
    VALUES,
    Int,
    Ints,
    Work,
    read_header,
    varint,
)
from forebay.data.parquet.snappy import unsnappy

Numbers = NDArray[Any]
Bytes = NDArray[np.uint8]

_BYTES = np.zeros(1, np.uint8)
_SHORT = np.zeros(1, np.int32)
_LONG = np.zeros(1, np.int64)
_WORDS = np.zeros(1, np.uint64)
_ONE, _THREE, _SEVEN, _EIGHT = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(8)

DATA_PAGE, DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8

# Behind what `page_headers` has in the working memory: a column's bytes of an item, memory and entries of its
# dictionary, options, and where a page may be decompressed to. Texts have no plain values. The caller sets the first.
ITEM_BYTES, TABLE, TABLE_BYTES, ENTRIES, ROWS, IS_OPTIONAL, IS_SNAPPY, SCRATCH, ROOM, IS_TEXT = (
    HEADER_WORK + k for k in range(10)
)
PAGE_WORK = HEADER_WORK + 10
SLACK = 16
"""Bytes after a page that may be read: levels and indices are read 8 bytes at a time."""


def _next_run(at: Int, end: Int, width: Int) -> tuple[Int, Int, Int, bool]:
    """Next run of levels or indices of `width` bits.

    Returns its values (0: damaged), its address, its bytes, and whether it is packed.

    A packed run has 8 values or a multiple of it, a run of one value that value in whole bytes.
    """
    head, at = varint(at, end)
    run, is_packed = np.int64(head >> _ONE), bool(head & _ONE)
    if at == 0 or not 0 < run <= MOST_VALUES:
        return 0, 0, 0, False
    length: Int = run * width if is_packed else (width + 7) // 8
    return (0, 0, 0, False) if length > end - at else (8 * run if is_packed else run, at, length, is_packed)


def _are_all_one(at: Int, end: Int, count: Int) -> bool:
    """Whether `count` levels of one bit are all 1.

    They come in runs. Then no value is null.
    """
    while count > 0:
        values, at, length, is_packed = next_run(at, end, 1)
        if values == 0:
            return False
        memory = items_at(at, _BYTES)
        if not is_packed and memory[0] != 1:
            return False
        for i in range(length if is_packed else 0):
            left = count - 8 * i
            expected = 255 if left >= 8 else (1 << max(left, 0)) - 1
            if np.int64(memory[i]) & expected != expected:
                return False
        at += length
        count -= values
    return True


def _unpack(at: Int, width: Int, entries: Int, table: Numbers, target: Int, count: Int) -> bool:
    """Look up `count` packed indices of `width` bits.

    Writes the entries of `table`.
    """
    out = items_at(target, table)
    bits, mask, last = np.uint64(width), (_ONE << np.uint64(width)) - _ONE, np.uint64(entries - 1)
    bit, largest = np.uint64(0), np.uint64(0)
    for i in range(count):
        index = (items_at(at + np.int64(bit >> _THREE), _WORDS)[0] >> (bit & _SEVEN)) & mask
        largest = max(largest, index)
        out[i] = table[min(index, last)]
        bit += bits
    return bool(largest <= last)


def _fill(value: Int, target: Numbers, count: Int) -> None:
    """Write one item `count` times."""
    for i in range(count):
        target[i] = value


def _repeat(at: Int, length: Int, work: Work, target: Int, count: Int) -> bool:
    """Write one entry of the dictionary `count` times.

    An index of `length` bytes names the entry.
    """
    memory, index = items_at(at, _BYTES), np.uint64(0)
    for i in range(length):
        index |= np.uint64(memory[i]) << (_EIGHT * np.uint64(i))
    if index >= np.uint64(work[ENTRIES]):
        return False
    if work[ITEM_BYTES] == 4:
        fill_4(items_at(work[TABLE], _SHORT)[index], items_at(target, _SHORT), count)
    else:
        fill_8(items_at(work[TABLE], _LONG)[index], items_at(target, _LONG), count)
    return True


def _look_up(at: Int, end: Int, count: Int, work: Work, target: Int) -> bool:
    """Look up the values of a page of indices.

    Writes `count` values of the dictionary. `SLACK` bytes after `end` are readable.
    """
    width, at, made = np.int64(items_at(at, _BYTES)[0]), at + 1, 0
    is_right = at <= end and width <= 32
    while is_right and made < count:
        values, at, length, is_packed = next_run(at, end, width)
        if values == 0:
            return False
        values, at_target = min(values, count - made), target + made * work[ITEM_BYTES]
        if not is_packed:
            is_right = repeat(at, length, work, at_target, values)
        elif work[ITEM_BYTES] == 4:
            is_right = unpack_4(at, width, work[ENTRIES], items_at(work[TABLE], _SHORT), at_target, values)
        else:
            is_right = unpack_8(at, width, work[ENTRIES], items_at(work[TABLE], _LONG), at_target, values)
        made += values
        at += length
    return bool(is_right)


def _open_page(at: Int, work: Work, target: Int, room: Int) -> bool:
    """Bring the bytes of a page to `target`."""
    size, stored = work[SIZE], work[STORED_SIZE]
    if size > room:
        return False
    if work[IS_SNAPPY]:
        return bool(unsnappy(at, stored, target, size) == size)
    if stored == size:
        copy(target, at, size)
    return bool(stored == size)


def _levels_end(begin: Int, end: Int) -> Int:
    """End of the levels at `begin`, or 0.

    Their number of bytes comes first. `SLACK` bytes after `end` are readable.
    """
    length = np.int64(items_at(begin, _SHORT)[0])
    return begin + 4 + length if 0 <= length <= end - begin - 4 else 0


def _read_encoded(begin: Int, count: Int, work: Work, target: Int) -> bool:
    """Decode the values of the page in scratch memory.

    `count` values begin at `begin`, and go to `target`.
    """
    end = work[SCRATCH] + work[SIZE]
    if work[ENCODING] == _PLAIN:
        if work[IS_TEXT] or end - begin != count * work[ITEM_BYTES]:
            return False
        copy(target, begin, end - begin)
        return True
    if work[ENCODING] not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) or work[ENTRIES] == 0:
        return False
    return count == 0 or bool(look_up(begin, end, count, work, target))


def _read_values(work: Work, target: Int) -> bool:
    """Decode the page in the scratch memory."""
    begin, end, values = work[SCRATCH], work[SCRATCH] + work[SIZE], work[VALUES]
    if work[IS_OPTIONAL]:
        levels, begin = begin + 4, levels_end(begin, end)
        if begin == 0 or work[DEFINITION] != RLE or not are_all_one(levels, begin, values):
            return False
    return bool(read_encoded(begin, values, work, target))


def _read_dictionary(at: Int, work: Work) -> bool:
    """Read the dictionary of a column."""
    values = work[VALUES]
    if work[ENTRIES] or values == 0 or work[SIZE] != values * work[ITEM_BYTES]:
        return False
    work[ENTRIES] = values
    return bool(open_page(at, work, work[TABLE], work[TABLE_BYTES]))


def _decode_column(at: Int, end: Int, work: Work, target: Int) -> bool:
    """Decode the column chunk from `at` to `end`."""
    made, is_right = 0, True
    while is_right and at < end:
        at = read_header(at, end, work)
        values = work[VALUES]
        if at == 0:
            return False
        if work[TYPE] == DICTIONARY_PAGE and made == 0:
            is_right = read_dictionary(at, work)
        elif work[TYPE] == DATA_PAGE and values <= work[ROWS] - made:
            is_right = open_page(at, work, work[SCRATCH], work[ROOM])
            is_right = is_right and read_values(work, target + made * work[ITEM_BYTES])
            made += values
        else:
            return False
        at += work[STORED_SIZE]
    return bool(is_right and made == work[ROWS])


def _decode_columns(chunks: Ints, into: Ints, scratch: Bytes, is_decoded: NDArray[np.bool_], memory: Ints) -> None:
    """Decode column chunks of items of a size.

    Writes which were decoded.

    `chunks[k]` is (address, bytes, whether it may have nulls, whether it is compressed by Snappy). `into` is (rows,
    target of the first chunk, bytes from target to target). `memory` names room for a
    dictionary, in its three words from `ITEM_BYTES` on.
    """
    work = items_at(memory.ctypes.data, memory)
    work[ROWS], work[SCRATCH], work[ROOM], work[IS_TEXT] = into[0], scratch.ctypes.data, len(scratch) - SLACK, 0
    for k in range(len(chunks)):
        work[IS_OPTIONAL], work[IS_SNAPPY], work[ENTRIES] = chunks[k, 2], chunks[k, 3], 0
        start, target = chunks[k, 0], into[1] + k * into[2]
        is_decoded[k] = decode_column(start, start + chunks[k, 1], work, target)


def _find_dictionary(at: Int, end: Int, memory: Ints) -> tuple[Int, Int]:
    """Entries and bytes of a column chunk's dictionary.

    The chunk goes from `at` to `end`, and may begin with a dictionary. Zeros without one.
    """
    work = items_at(memory.ctypes.data, memory)
    at = read_header(at, end, work)
    if at == 0 or work[TYPE] != DICTIONARY_PAGE or work[VALUES] * 4 > work[SIZE]:
        return 0, 0
    return work[VALUES], work[SIZE]


def _split_texts(at: Int, end: Int, offsets: Numbers, count: Int, target: Int) -> bool:
    """Copy `count` length-prefixed texts to `target` without gaps.

    Writes their bounds to `offsets`.
    """
    made: Int = 0
    for k in range(count):
        length = np.int64(items_at(at, _SHORT)[0]) if end - at >= 4 else -1
        if not 0 <= length <= end - at - 4:
            return False
        offsets[k] = made
        copy(target + made, at + 4, length)
        at, made = at + 4 + length, made + length
    offsets[count] = made
    return bool(at == end)


def _decode_texts(
    chunk: Ints,
    offsets: NDArray[Any],
    texts: Bytes,
    indices: NDArray[Any],
    scratch: Bytes,
    memory: Ints,
) -> bool:
    """Decode a column chunk of texts.

    Writes a dictionary, and `indices` [rows]. Returns whether it did.

    `chunk` is (address, bytes, whether it may have nulls, whether Snappy compressed it). The dictionary has the texts
    between the `offsets` [entries + 1] of `texts`, which has room for its page. `memory` names the
    numbers 0, 1, ... [entries] as a dictionary.
    """
    work = items_at(memory.ctypes.data, memory)
    work[ROWS], work[SCRATCH], work[ROOM] = len(indices), scratch.ctypes.data, len(scratch) - SLACK
    work[IS_OPTIONAL], work[IS_SNAPPY], work[IS_TEXT], work[ENTRIES] = chunk[2], chunk[3], 1, 0
    count, end = work[TABLE_BYTES] // 4, chunk[0] + chunk[1]
    at = read_header(chunk[0], end, work)
    if at == 0 or work[TYPE] != DICTIONARY_PAGE or work[VALUES] != count or work[SIZE] > len(texts):
        return False
    if not open_page(at, work, work[SCRATCH], work[ROOM]) or len(offsets) != count + 1:
        return False
    work[ENTRIES], bounds = work[VALUES], items_at(np.int64(offsets.ctypes.data), _SHORT)
    first, last = work[SCRATCH], work[SCRATCH] + work[SIZE]
    if not split_texts(first, last, bounds, count, np.int64(texts.ctypes.data)):
        return False
    return bool(decode_column(at + work[STORED_SIZE], end, work, np.int64(indices.ctypes.data)))


_work, _4, _8 = types.CPointer(int64), types.CPointer(int32), types.CPointer(int64)
next_run = part(types.Tuple((int64, int64, int64, types.boolean))(int64, int64, int64))(_next_run)
are_all_one = part(types.boolean(int64, int64, int64))(_are_all_one)
unpack_4 = part(types.boolean(int64, int64, int64, _4, int64, int64))(_unpack)
unpack_8 = part(types.boolean(int64, int64, int64, _8, int64, int64))(_unpack)
fill_4 = part(types.void(int32, _4, int64))(_fill)
fill_8 = part(types.void(int64, _8, int64))(_fill)
repeat = part(types.boolean(int64, int64, _work, int64, int64))(_repeat)
look_up = part(types.boolean(int64, int64, int64, _work, int64))(_look_up)
open_page = part(types.boolean(int64, _work, int64, int64))(_open_page)
levels_end = part(int64(int64, int64))(_levels_end)
read_encoded = part(types.boolean(int64, int64, _work, int64))(_read_encoded)
read_values = part(types.boolean(_work, int64))(_read_values)
read_dictionary = part(types.boolean(int64, _work))(_read_dictionary)
decode_column = part(types.boolean(int64, int64, _work, int64))(_decode_column)
decode_columns = kernel(types.void(int64[:, ::1], int64[::1], uint8[::1], types.boolean[::1], int64[::1]))(
    _decode_columns
)
find_dictionary = kernel(types.UniTuple(int64, 2)(int64, int64, int64[::1]))(_find_dictionary)
split_texts = part(types.boolean(int64, int64, _4, int64, int64))(_split_texts)
decode_texts = kernel(types.boolean(int64[::1], int32[::1], uint8[::1], int32[::1], uint8[::1], int64[::1]))(
    _decode_texts
)
