"""Compiled decoder of the pages of Parquet columns: numbers of 4 or 8 bytes, without nulls, plain or by a dictionary.

Trusts nothing in the pages. Whatever it does not know, and whatever does not fit, is a `False` for that column: then
Arrow's decoder reads the column, and says what is wrong with it. Never reads or writes outside of the memory it was
given (docs/adr/0083-own-decoder-of-numbers.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64, njit, types, uint8
from numpy.typing import NDArray

from forebay.kernels.intrinsics import copy, items_at
from forebay.kernels.page_headers import (
    COMPILED,
    ENCODING,
    MOST_VALUES,
    SIZE,
    STORED_SIZE,
    TYPE,
    VALUES,
    Int,
    Ints,
    read_header,
    varint,
)

Numbers = NDArray[Any]

_BYTES = np.zeros(1, np.uint8)
_SHORT = np.zeros(1, np.int32)
_WORDS = np.zeros(1, np.uint64)
_ONE, _THREE, _SEVEN, _EIGHT = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(8)

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_LITERAL = -1

# Options of a column, `entries` of its dictionary, and where a page may be decompressed to.
_ROWS, _IS_OPTIONAL, _IS_SNAPPY, _ENTRIES, _SCRATCH, _ROOM = 0, 1, 2, 3, 4, 5
_SLACK = 16
"""Bytes after a page that may be read: indices are read 8 bytes at a time."""


def _read_tag(source: Int, at: Int, length: Int) -> tuple[Int, Int, Int]:
    """Bytes of a Snappy element (0: damaged), their distance (`_LITERAL`: they follow), and place behind the tag."""
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


def _unsnappy(source: Int, length: Int, target: Int, capacity: Int) -> Int:
    """Decompress Snappy. Returns the number of bytes, or -1 for bytes that are not Snappy or do not fit."""
    stated, start = varint(source, source + length)
    if start == 0 or stated > np.uint64(capacity):
        return -1
    size, at, made = np.int64(stated), start - source, 0
    out = items_at(target, _BYTES)
    while at < length:
        count, back, at = read_tag(source, at, length)
        if count == 0 or count > size - made:
            return -1
        if back == _LITERAL:
            if count > length - at:
                return -1
            copy(target + made, source + at, count)
            at += count
        elif back == 0 or back > made:
            return -1
        elif back >= count:
            copy(target + made, target + made - back, count)
        else:  # the copy reads what it writes
            for i in range(made, made + count):
                out[i] = out[i - back]
        made += count
    return made if made == size else -1


def _are_all_one(at: Int, end: Int, count: Int) -> bool:
    """Whether `count` levels of one bit, in runs, are all 1: there is no null among the values."""
    while count > 0:
        head, at = varint(at, end)
        if at == 0 or at >= end or head >> _ONE > np.uint64(MOST_VALUES):
            return False
        groups = np.int64(head >> _ONE)
        memory = items_at(at, _BYTES)
        if head & _ONE:
            if groups == 0 or groups > end - at:
                return False
            for i in range(groups):
                left = count - 8 * i
                expected = 255 if left >= 8 else (1 << max(left, 0)) - 1
                if np.int64(memory[i]) & expected != expected:
                    return False
            at += groups
            count -= 8 * groups
        else:
            if groups == 0 or memory[0] != 1:
                return False
            at += 1
            count -= groups
    return True


def _unpack(at: Int, width: Int, entries: Int, table: Numbers, target: Int, count: Int) -> bool:
    """Write the entries of `table` that `count` packed indices of `width` bits name."""
    out = items_at(target, table)
    bits, mask, last = np.uint64(width), (_ONE << np.uint64(width)) - _ONE, np.uint64(entries - 1)
    bit, largest = np.uint64(0), np.uint64(0)
    for i in range(count):
        index = (items_at(at + np.int64(bit >> _THREE), _WORDS)[0] >> (bit & _SEVEN)) & mask
        largest = max(largest, index)
        out[i] = table[min(index, last)]
        bit += bits
    return bool(largest <= last)


def _repeat(at: Int, length: Int, entries: Int, table: Numbers, target: Int, count: Int) -> bool:
    """Write `count` times the entry of `table` that an index of `length` bytes names."""
    out, memory, index = items_at(target, table), items_at(at, _BYTES), np.uint64(0)
    for i in range(length):
        index |= np.uint64(memory[i]) << (_EIGHT * np.uint64(i))
    if index >= np.uint64(entries):
        return False
    value = table[index]
    for i in range(count):
        out[i] = value
    return True


def _look_up(at: Int, end: Int, count: Int, entries: Int, table: Numbers, target: Int) -> bool:
    """Write the `count` values of `table` that a page of indices names. `_SLACK` bytes after `end` are readable."""
    width, at, made = np.int64(items_at(at, _BYTES)[0]), at + 1, 0
    is_right = at <= end and width <= 32
    while is_right and made < count:
        head, at = varint(at, end)
        run, is_packed = np.int64(head >> _ONE), head & _ONE
        if at == 0 or not 0 < run <= MOST_VALUES:
            return False
        length = run * width if is_packed else (width + 7) // 8
        if length > end - at:
            return False
        values, place = min(8 * run if is_packed else run, count - made), target + made * table.itemsize
        if is_packed:
            is_right = unpack(at, width, entries, table, place, values)
        else:
            is_right = repeat(at, length, entries, table, place, values)
        made += values
        at += length
    return bool(is_right)


def _open_page(at: Int, header: Ints, options: Ints, target: Int, room: Int) -> bool:
    """Bring the bytes of a page to `target`."""
    size, stored = header[SIZE], header[STORED_SIZE]
    if size > room:
        return False
    if options[_IS_SNAPPY]:
        return bool(unsnappy(at, stored, target, size) == size)
    if stored == size:
        copy(target, at, size)
    return bool(stored == size)


def _read_values(header: Ints, options: Ints, table: Numbers, target: Int) -> bool:
    """Decode the page in the scratch memory."""
    begin, end, values = options[_SCRATCH], options[_SCRATCH] + header[SIZE], header[VALUES]
    if options[_IS_OPTIONAL]:
        levels = np.int64(items_at(begin, _SHORT)[0])
        begin += 4
        if not 0 <= levels <= end - begin or not are_all_one(begin, begin + levels, values):
            return False
        begin += levels
    if header[ENCODING] == _PLAIN:
        if end - begin != values * table.itemsize:
            return False
        copy(target, begin, end - begin)
        return True
    if header[ENCODING] not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) or options[_ENTRIES] == 0:
        return False
    return values == 0 or bool(look_up(begin, end, values, options[_ENTRIES], table, target))


def _read_dictionary(at: Int, header: Ints, options: Ints, table: Numbers) -> bool:
    """Read the dictionary of a column into `table`."""
    values = header[VALUES]
    if options[_ENTRIES] or values == 0 or header[SIZE] != values * table.itemsize:
        return False
    options[_ENTRIES] = values
    return bool(open_page(at, header, options, np.int64(table.ctypes.data), table.nbytes))


def _decode_column(at: Int, end: Int, options: Ints, target: Int, table: Numbers) -> bool:
    """Decode the column chunk from `at` to `end`."""
    header, made, is_right = np.empty(5, np.int64), 0, True
    while is_right and at < end:
        at = read_header(at, end, header)
        values = header[VALUES]
        if at == 0:
            return False
        if header[TYPE] == _DICTIONARY_PAGE and made == 0:
            is_right = read_dictionary(at, header, options, table)
        elif header[TYPE] == _DATA_PAGE and values <= options[_ROWS] - made:
            is_right = open_page(at, header, options, options[_SCRATCH], options[_ROOM])
            is_right = is_right and read_values(header, options, table, target + made * table.itemsize)
            made += values
        else:
            return False
        at += header[STORED_SIZE]
    return bool(is_right and made == options[_ROWS])


def _decode_columns(
    chunks: Ints, places: Ints, scratch: NDArray[np.uint8], table: Numbers, is_decoded: NDArray[np.bool_]
) -> None:
    """Decode column chunks of items of `table`'s size. Writes which it decoded.

    `chunks[k]` is (address, bytes, whether it may have nulls, whether it is compressed by Snappy). `places` is (rows,
    target of the first chunk, bytes from target to target).
    """
    options = np.empty(6, np.int64)
    options[_ROWS], options[_SCRATCH], options[_ROOM] = places[0], scratch.ctypes.data, len(scratch) - _SLACK
    for k in range(len(chunks)):
        options[_IS_OPTIONAL], options[_IS_SNAPPY], options[_ENTRIES] = chunks[k, 2], chunks[k, 3], 0
        start, target = chunks[k, 0], places[1] + k * places[2]
        is_decoded[k] = decode_column(start, start + chunks[k, 1], options, target, table)


_sizes = (int32, int64)
_column = [types.boolean(int64, int64, int64[::1], int64, item[::1]) for item in _sizes]
_page = [types.boolean(int64[::1], int64[::1], item[::1], int64) for item in _sizes]
_opened = [types.boolean(int64, int64[::1], int64[::1], item[::1]) for item in _sizes]
_indices = [types.boolean(int64, int64, int64, item[::1], int64, int64) for item in _sizes]
_lookups = [types.boolean(int64, int64, int64, int64, item[::1], int64) for item in _sizes]
_columns = [types.void(int64[:, ::1], int64[::1], uint8[::1], item[::1], types.boolean[::1]) for item in _sizes]
read_tag = njit(types.UniTuple(int64, 3)(int64, int64, int64), **COMPILED)(_read_tag)
unsnappy = njit(int64(int64, int64, int64, int64), **COMPILED)(_unsnappy)
are_all_one = njit(types.boolean(int64, int64, int64), **COMPILED)(_are_all_one)
unpack = njit(_indices, **COMPILED)(_unpack)
repeat = njit(_indices, **COMPILED)(_repeat)
look_up = njit(_lookups, **COMPILED)(_look_up)
open_page = njit(types.boolean(int64, int64[::1], int64[::1], int64, int64), **COMPILED)(_open_page)
read_values = njit(_page, **COMPILED)(_read_values)
read_dictionary = njit(_opened, **COMPILED)(_read_dictionary)
decode_column = njit(_column, **COMPILED)(_decode_column)
decode_columns = njit(_columns, **COMPILED)(_decode_columns)
