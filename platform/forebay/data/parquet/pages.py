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
from numba import int32, int64, njit, types, uint8
from numpy.typing import NDArray

from forebay.data.kernels.intrinsics import copy, items_at
from forebay.data.parquet.page_headers import (
    COMPILED,
    DEFINITION,
    ENCODING,
    HEADER,
    MOST_VALUES,
    RLE,
    SIZE,
    STORED_SIZE,
    TYPE,
    VALUES,
    Int,
    Ints,
    read_header,
    varint,
)
from forebay.data.parquet.snappy import unsnappy

Numbers = NDArray[Any]

_BYTES = np.zeros(1, np.uint8)
_SHORT = np.zeros(1, np.int32)
_WORDS = np.zeros(1, np.uint64)
_ONE, _THREE, _SEVEN, _EIGHT = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(8)

DATA_PAGE, DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8

# Options of a column, `entries` of its dictionary, and where a page may be decompressed to. Texts have no plain values.
ROWS, IS_OPTIONAL, IS_SNAPPY, ENTRIES, SCRATCH, ROOM, IS_TEXT, COLUMN_OPTIONS = 0, 1, 2, 3, 4, 5, 6, 7
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


def _repeat(at: Int, length: Int, entries: Int, table: Numbers, target: Int, count: Int) -> bool:
    """Write one entry of `table` `count` times.

    An index of `length` bytes names the entry.
    """
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
    """Look up the values of a page of indices.

    Writes `count` values of `table`. `SLACK` bytes after `end` are readable.
    """
    width, at, made = np.int64(items_at(at, _BYTES)[0]), at + 1, 0
    is_right = at <= end and width <= 32
    while is_right and made < count:
        values, at, length, is_packed = next_run(at, end, width)
        if values == 0:
            return False
        values, at_target = min(values, count - made), target + made * table.itemsize
        if is_packed:
            is_right = unpack(at, width, entries, table, at_target, values)
        else:
            is_right = repeat(at, length, entries, table, at_target, values)
        made += values
        at += length
    return bool(is_right)


def _open_page(at: Int, header: Ints, options: Ints, target: Int, room: Int) -> bool:
    """Bring the bytes of a page to `target`."""
    size, stored = header[SIZE], header[STORED_SIZE]
    if size > room:
        return False
    if options[IS_SNAPPY]:
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


def _read_encoded(begin: Int, count: Int, header: Ints, options: Ints, table: Numbers, target: Int) -> bool:
    """Decode the values of the page in scratch memory.

    `count` values begin at `begin`, and go to `target`.
    """
    end = options[SCRATCH] + header[SIZE]
    if header[ENCODING] == _PLAIN:
        if options[IS_TEXT] or end - begin != count * table.itemsize:
            return False
        copy(target, begin, end - begin)
        return True
    if header[ENCODING] not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) or options[ENTRIES] == 0:
        return False
    return count == 0 or bool(look_up(begin, end, count, options[ENTRIES], table, target))


def _read_values(header: Ints, options: Ints, table: Numbers, target: Int) -> bool:
    """Decode the page in the scratch memory."""
    begin, end, values = options[SCRATCH], options[SCRATCH] + header[SIZE], header[VALUES]
    if options[IS_OPTIONAL]:
        levels, begin = begin + 4, levels_end(begin, end)
        if begin == 0 or header[DEFINITION] != RLE or not are_all_one(levels, begin, values):
            return False
    return bool(read_encoded(begin, values, header, options, table, target))


def _read_dictionary(at: Int, header: Ints, options: Ints, table: Numbers) -> bool:
    """Read the dictionary of a column into `table`."""
    values = header[VALUES]
    if options[ENTRIES] or values == 0 or header[SIZE] != values * table.itemsize:
        return False
    options[ENTRIES] = values
    return bool(open_page(at, header, options, np.int64(table.ctypes.data), table.nbytes))


def _decode_column(at: Int, end: Int, options: Ints, target: Int, table: Numbers) -> bool:
    """Decode the column chunk from `at` to `end`."""
    header, made, is_right = np.empty(HEADER, np.int64), 0, True
    while is_right and at < end:
        at = read_header(at, end, header)
        values = header[VALUES]
        if at == 0:
            return False
        if header[TYPE] == DICTIONARY_PAGE and made == 0:
            is_right = read_dictionary(at, header, options, table)
        elif header[TYPE] == DATA_PAGE and values <= options[ROWS] - made:
            is_right = open_page(at, header, options, options[SCRATCH], options[ROOM])
            is_right = is_right and read_values(header, options, table, target + made * table.itemsize)
            made += values
        else:
            return False
        at += header[STORED_SIZE]
    return bool(is_right and made == options[ROWS])


def _decode_columns(
    chunks: Ints, into: Ints, scratch: NDArray[np.uint8], table: Numbers, is_decoded: NDArray[np.bool_]
) -> None:
    """Decode column chunks of items of `table`'s size.

    Writes which were decoded.

    `chunks[k]` is (address, bytes, whether it may have nulls, whether it is compressed by Snappy). `into` is (rows,
    target of the first chunk, bytes from target to target).
    """
    options = np.zeros(COLUMN_OPTIONS, np.int64)
    options[ROWS], options[SCRATCH], options[ROOM] = into[0], scratch.ctypes.data, len(scratch) - SLACK
    for k in range(len(chunks)):
        options[IS_OPTIONAL], options[IS_SNAPPY], options[ENTRIES] = chunks[k, 2], chunks[k, 3], 0
        start, target = chunks[k, 0], into[1] + k * into[2]
        is_decoded[k] = decode_column(start, start + chunks[k, 1], options, target, table)


def _find_dictionary(at: Int, end: Int) -> tuple[Int, Int]:
    """Entries and bytes of a column chunk's dictionary.

    The chunk goes from `at` to `end`, and may begin with a dictionary. Zeros without one.
    """
    header = np.empty(HEADER, np.int64)
    at = read_header(at, end, header)
    if at == 0 or header[TYPE] != DICTIONARY_PAGE or header[VALUES] * 4 > header[SIZE]:
        return 0, 0
    return header[VALUES], header[SIZE]


def _split_texts(at: Int, end: Int, offsets: NDArray[Any], texts: NDArray[np.uint8]) -> bool:
    """Copy length-prefixed texts to `texts` without gaps.

    Writes their bounds to `offsets`.
    """
    made: Int = 0
    target = np.int64(texts.ctypes.data)
    for k in range(len(offsets) - 1):
        length = np.int64(items_at(at, _SHORT)[0]) if end - at >= 4 else -1
        if not 0 <= length <= end - at - 4:
            return False
        offsets[k] = made
        copy(target + made, at + 4, length)
        at, made = at + 4 + length, made + length
    offsets[len(offsets) - 1] = made
    return bool(at == end)


def _decode_texts(
    chunk: Ints,
    offsets: NDArray[Any],
    texts: NDArray[np.uint8],
    indices: NDArray[Any],
    scratch: NDArray[np.uint8],
    numbers: NDArray[Any],
) -> bool:
    """Decode a column chunk of texts.

    Writes a dictionary, and `indices` [rows]. Returns whether it did.

    `chunk` is (address, bytes, whether it may have nulls, whether Snappy compressed it). The dictionary has the texts
    between the `offsets` [entries + 1] of `texts`, which has room for its page. `numbers` are 0, 1, ... [entries].
    """
    options, header = np.zeros(COLUMN_OPTIONS, np.int64), np.empty(HEADER, np.int64)
    options[ROWS], options[SCRATCH], options[ROOM] = len(indices), scratch.ctypes.data, len(scratch) - SLACK
    options[IS_OPTIONAL], options[IS_SNAPPY], options[IS_TEXT] = chunk[2], chunk[3], 1
    end = chunk[0] + chunk[1]
    at = read_header(chunk[0], end, header)
    if at == 0 or header[TYPE] != DICTIONARY_PAGE or header[VALUES] != len(numbers) or header[SIZE] > len(texts):
        return False
    if not open_page(at, header, options, options[SCRATCH], options[ROOM]):
        return False
    options[ENTRIES] = header[VALUES]
    if len(offsets) != len(numbers) + 1 or not split_texts(
        options[SCRATCH], options[SCRATCH] + header[SIZE], offsets, texts
    ):
        return False
    return bool(decode_column(at + header[STORED_SIZE], end, options, np.int64(indices.ctypes.data), numbers))


_sizes = (int32, int64)
_column = [types.boolean(int64, int64, int64[::1], int64, item[::1]) for item in _sizes]
_encoded = [types.boolean(int64, int64, int64[::1], int64[::1], item[::1], int64) for item in _sizes]
_page = [types.boolean(int64[::1], int64[::1], item[::1], int64) for item in _sizes]
_opened = [types.boolean(int64, int64[::1], int64[::1], item[::1]) for item in _sizes]
_indices = [types.boolean(int64, int64, int64, item[::1], int64, int64) for item in _sizes]
_lookups = [types.boolean(int64, int64, int64, int64, item[::1], int64) for item in _sizes]
_columns = [types.void(int64[:, ::1], int64[::1], uint8[::1], item[::1], types.boolean[::1]) for item in _sizes]
next_run = njit(types.Tuple((int64, int64, int64, types.boolean))(int64, int64, int64), **COMPILED)(_next_run)
are_all_one = njit(types.boolean(int64, int64, int64), **COMPILED)(_are_all_one)
unpack = njit(_indices, **COMPILED)(_unpack)
repeat = njit(_indices, **COMPILED)(_repeat)
look_up = njit(_lookups, **COMPILED)(_look_up)
open_page = njit(types.boolean(int64, int64[::1], int64[::1], int64, int64), **COMPILED)(_open_page)
levels_end = njit(int64(int64, int64), **COMPILED)(_levels_end)
read_encoded = njit(_encoded, **COMPILED)(_read_encoded)
read_values = njit(_page, **COMPILED)(_read_values)
read_dictionary = njit(_opened, **COMPILED)(_read_dictionary)
decode_column = njit(_column, **COMPILED)(_decode_column)
decode_columns = njit(_columns, **COMPILED)(_decode_columns)
find_dictionary = njit(types.UniTuple(int64, 2)(int64, int64), **COMPILED)(_find_dictionary)
split_texts = njit(types.boolean(int64, int64, int32[::1], uint8[::1]), **COMPILED)(_split_texts)
decode_texts = njit(types.boolean(int64[::1], int32[::1], uint8[::1], int32[::1], uint8[::1], int32[::1]), **COMPILED)(
    _decode_texts
)
