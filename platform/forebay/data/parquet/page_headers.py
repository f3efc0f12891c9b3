"""Compiled reader of Parquet page headers and footers.

They are in Thrift's compact protocol. Trusts nothing that it reads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import int64, njit, types, uint64
from numpy.typing import NDArray

from forebay.data.kernels.intrinsics import items_at

Ints = NDArray[np.int64]
Int: TypeAlias = Any
"""int64: of Python and of NumPy for the type checker, of the machine when compiled."""

_BYTES = np.zeros(1, np.uint8)
_ONE, _SEVEN, _LOW = np.uint64(1), np.uint64(7), np.uint64(127)

# Types of fields.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
# Fields of a page header.
_TYPE, _SIZE, _STORED_SIZE, _CHECKSUM, _OF_DATA, _OF_DICTIONARY, _OF_DATA_2 = 1, 2, 3, 4, 5, 7, 8
_DATA_PAGE, _DATA_PAGE_2 = 0, 3
_VALUES, _ENCODING, _DEFINITION, _REPETITION = 1, 2, 3, 4
# Fields of a footer, down to the codec of a column chunk.
_ROW_GROUPS, _CHUNKS, _METADATA, _CODEC = 4, 1, 3, 4

# Places of what `read_header` reads.
TYPE, SIZE, STORED_SIZE, VALUES, ENCODING, DEFINITION, REPETITION = 0, 1, 2, 3, 4, 5, 6
HEADER = 7
_NEEDED = 5
RLE = 3
"""Encoding of levels that is read. The older one has no length in front."""
MOST_VALUES = 1 << 31
_MOST_DEPTH = 16


def _varint(at: Int, end: Int) -> tuple[Any, Int]:
    """Varint at an address, and the address behind it.

    The address is 0 if the number does not end before `end`.
    """
    memory, value, shift = items_at(at, _BYTES), np.uint64(0), np.uint64(0)
    for i in range(min(end - at, 10)):
        byte = np.uint64(memory[i])
        value |= (byte & _LOW) << shift
        if byte <= _LOW:
            return value, at + i + 1
        shift += _SEVEN
    return value, 0


def _integer(at: Int, end: Int) -> tuple[Int, Int]:
    """Zigzag varint, and the address behind it, or 0."""
    value, at = varint(at, end)
    return np.int64(value >> _ONE) ^ -np.int64(value & _ONE), at


def _skip_value(at: Int, end: Int, kind: Int) -> Int:
    """Address behind a field that is not a struct, or 0."""
    if kind in (_TRUE, _FALSE):
        return at
    if kind in (_I16, _I32, _I64):
        return varint(at, end)[1]
    length: Int = 0
    if kind == _BYTE:
        length = 1
    elif kind == _DOUBLE:
        length = 8
    elif kind == _BINARY:
        size, at = varint(at, end)
        if at == 0 or size > np.uint64(end - at):
            return 0
        length = np.int64(size)
    else:
        return 0
    return at + length if length <= end - at else 0


def _next_field(at: Int, end: Int, field: Int) -> tuple[Int, Int, Int]:
    """Next field: its number, type, and the address behind.

    Type 0 ends a struct. Address 0 is an error.
    """
    if at == 0 or at >= end:
        return 0, 0, 0
    byte = np.int64(items_at(at, _BYTES)[0])
    at += 1
    if byte >> 4:
        return field + (byte >> 4), byte & 15, at
    if byte == 0:
        return 0, 0, at
    field, at = integer(at, end)
    return field, byte & 15, at


def _open_list(at: Int, end: Int) -> tuple[Int, Int, Int]:
    """Length and item type of a list, and the address behind.

    The address is 0 for an error.
    """
    if at >= end:
        return 0, 0, 0
    byte, at = np.int64(items_at(at, _BYTES)[0]), at + 1
    count, kind = byte >> 4, byte & 15
    if count == 15:
        stated, at = varint(at, end)
        count = np.int64(min(stated, np.uint64(MOST_VALUES)))
    # A truth value of a struct lies in its type, one of a list in a byte.
    return count, _BYTE if kind in (_TRUE, _FALSE) else kind, at


def _skip(at: Int, end: Int, kind: Int) -> Int:
    """Address behind a value, or 0.

    The value has any type but a map.
    """
    lefts, kinds, depth = np.empty(_MOST_DEPTH, np.int64), np.empty(_MOST_DEPTH, np.int64), 0
    while at:
        if kind not in (_LIST, _SET, _STRUCT):
            at = skip_value(at, end, kind)
        elif depth == _MOST_DEPTH:
            return 0
        else:
            lefts[depth], depth = -1, depth + 1
            if kind != _STRUCT:
                lefts[depth - 1], kinds[depth - 1], at = open_list(at, end)
        kind = 0
        while at and depth and kind == 0:
            if lefts[depth - 1] < 0:
                _, kind, at = next_field(at, end, 0)
            elif lefts[depth - 1] > 0:
                lefts[depth - 1] -= 1
                kind = kinds[depth - 1]
            if kind == 0:
                depth -= 1
        if depth == 0:
            return at
    return 0


def _find(at: Int, end: Int, wanted: Int, wanted_kind: Int) -> Int:
    """Address of a field of the struct at `at`, or 0."""
    field: Int = 0
    while at:
        field, kind, at = next_field(at, end, field)
        if at == 0 or kind == 0:
            return 0
        if field == wanted and kind == wanted_kind:
            return at
        at = skip(at, end, kind)
    return 0


def _find_integer(at: Int, end: Int, wanted: Int) -> Int:
    """Non-negative integer field of a struct, or -1."""
    value_at = find(at, end, wanted, _I32)
    value, behind = integer(value_at, end) if value_at else (-1, 0)
    return value if behind else -1


def _read_header(at: Int, end: Int, header: Ints) -> Int:
    """Read a page header into `header` [7].

    Returns the address of the page, or 0 for a page that Arrow must read.

    Those are pages with a checksum, too: Arrow verifies it. Encodings of levels are -1 where none are stated.
    """
    header[TYPE], header[SIZE] = find_integer(at, end, _TYPE), find_integer(at, end, _SIZE)
    header[STORED_SIZE] = find_integer(at, end, _STORED_SIZE)
    own = find(at, end, _OF_DICTIONARY if header[TYPE] else _OF_DATA, _STRUCT)
    if own == 0 or find(at, end, _CHECKSUM, _I32):
        return 0
    header[VALUES], header[ENCODING] = find_integer(own, end, _VALUES), find_integer(own, end, _ENCODING)
    header[DEFINITION], header[REPETITION] = find_integer(own, end, _DEFINITION), find_integer(own, end, _REPETITION)
    at = skip(at, end, _STRUCT)
    if at == 0 or header[:_NEEDED].min() < 0 or max(header[SIZE], header[VALUES]) > MOST_VALUES:
        return 0
    return at if header[STORED_SIZE] <= end - at else 0


def _count_values(at: Int, end: Int) -> Int:
    """Count the values that the headers of all data pages state.

    -1 if a header cannot be read.
    """
    count: Int = 0
    while at < end:
        kind, size = find_integer(at, end, _TYPE), find_integer(at, end, _STORED_SIZE)
        if kind in (_DATA_PAGE, _DATA_PAGE_2):
            own = find(at, end, _OF_DATA if kind == _DATA_PAGE else _OF_DATA_2, _STRUCT)
            values = find_integer(own, end, _VALUES) if own else -1
            if values < 0:
                return -1
            count += values
        at = skip(at, end, _STRUCT)
        if at == 0 or size < 0 or size > end - at:
            return -1
        at += size
    return count


def _open_structs(at: Int, end: Int, field: Int, count: Int) -> Int:
    """Address of the first struct in a list, or 0.

    The list is a field of the struct at `at`, and must have `count` structs.
    """
    value_at = find(at, end, field, _LIST)
    found, kind, first = open_list(value_at, end) if value_at else (0, 0, 0)
    return first if kind == _STRUCT and found == count else 0


def _read_codecs(at: Int, end: Int, codecs: Ints) -> bool:
    """Read the codecs of all column chunks of a footer.

    Writes them to `codecs` [row groups, columns], -1 where none is stated.
    """
    groups, columns = codecs.shape
    at = open_structs(at, end, _ROW_GROUPS, groups)
    for group in range(groups):
        chunk = open_structs(at, end, _CHUNKS, columns) if at else 0
        for column in range(columns):
            metadata = find(chunk, end, _METADATA, _STRUCT) if chunk else 0
            codecs[group, column] = find_integer(metadata, end, _CODEC) if metadata else -1
            chunk = skip(chunk, end, _STRUCT) if chunk else 0
        at = skip(at, end, _STRUCT) if chunk else 0
    return bool(at > 0)


COMPILED = {"nogil": True, "cache": True}
varint = njit(types.Tuple((uint64, int64))(int64, int64), **COMPILED)(_varint)
integer = njit(types.UniTuple(int64, 2)(int64, int64), **COMPILED)(_integer)
skip_value = njit(int64(int64, int64, int64), **COMPILED)(_skip_value)
next_field = njit(types.UniTuple(int64, 3)(int64, int64, int64), **COMPILED)(_next_field)
open_list = njit(types.UniTuple(int64, 3)(int64, int64), **COMPILED)(_open_list)
skip = njit(int64(int64, int64, int64), **COMPILED)(_skip)
find = njit(int64(int64, int64, int64, int64), **COMPILED)(_find)
find_integer = njit(int64(int64, int64, int64), **COMPILED)(_find_integer)
read_header = njit(int64(int64, int64, int64[::1]), **COMPILED)(_read_header)
count_values = njit(int64(int64, int64), **COMPILED)(_count_values)
open_structs = njit(int64(int64, int64, int64, int64), **COMPILED)(_open_structs)
read_codecs = njit(types.boolean(int64, int64, int64[:, ::1]), **COMPILED)(_read_codecs)
