"""Compiled reader of Parquet page headers and footers.

They are in Thrift's compact protocol. Trusts nothing that it reads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import int64, types, uint64
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import items_at

Ints = NDArray[np.int64]
Int: TypeAlias = Any
"""int64: of Python and of NumPy for the type checker, of the machine when compiled."""
Work: TypeAlias = Any
"""Pointer to the working memory of a call. It takes a fifth of the time of an array to compile."""

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

# Places in the working memory of a call, int64. First what `read_header` reads.
TYPE, SIZE, STORED_SIZE, VALUES, ENCODING, DEFINITION, REPETITION = 0, 1, 2, 3, 4, 5, 6
_NEEDED = 5
_FIELDS, _MOST_DEPTH = 16, 16
_FIELD, _KIND = 7, 23
"""Value or address of each field that `read_struct` found, and its type or 0."""
_LEFT, _ITEMS = 39, 55
"""Items left in each list that `skip` is in, or -1 for a struct, and their type."""
HEADER_WORK = 71

RLE = 3
"""Encoding of levels that is read. The older one has no length in front."""
MOST_VALUES = 1 << 31


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


def _skip(at: Int, end: Int, kind: Int, work: Work) -> Int:
    """Address behind a value, or 0.

    The value has any type but a map.
    """
    depth: Int = 0
    while at:
        if kind not in (_LIST, _SET, _STRUCT):
            at = skip_value(at, end, kind)
        elif depth == _MOST_DEPTH:
            return 0
        else:
            work[_LEFT + depth], depth = -1, depth + 1
            if kind != _STRUCT:
                work[_LEFT + depth - 1], work[_ITEMS + depth - 1], at = open_list(at, end)
        kind = 0
        while at and depth and kind == 0:
            if work[_LEFT + depth - 1] < 0:
                _, kind, at = next_field(at, end, 0)
            elif work[_LEFT + depth - 1] > 0:
                work[_LEFT + depth - 1] -= 1
                kind = work[_ITEMS + depth - 1]
            if kind == 0:
                depth -= 1
        if depth == 0:
            return at
    return 0


def _read_struct(at: Int, end: Int, last: Int, work: Work) -> Int:
    """Read the fields of a struct.

    Returns the address behind it, or behind field `last` if it has one. 0 for damage.

    Keeps the numbers, and the addresses of structs and lists, of the first field of each number below 16.
    """
    for k in range(_FIELDS):
        work[_KIND + k] = 0
    field: Int = 0
    while at:
        field, kind, at = next_field(at, end, field)
        if at == 0 or kind == 0:
            return at
        value = integer(at, end)[0] if kind == _I32 else at
        if 0 < field < _FIELDS and work[_KIND + field] == 0:
            work[_FIELD + field], work[_KIND + field] = value, kind
        at = skip(at, end, kind, work)
        if field == last:
            return at
    return 0


def _field(wanted: Int, kind: Int, missing: Int, work: Work) -> Int:
    """Value or address of a field, if it has a type."""
    return work[_FIELD + wanted] if work[_KIND + wanted] == kind else missing


def _read_header(at: Int, end: Int, work: Work) -> Int:
    """Read a page header into the first words of `work`.

    Returns the address of the page, or 0 for a page that Arrow must read.

    Those are pages with a checksum, too: Arrow verifies it. Encodings of levels are -1 where none are stated.
    """
    at = read_struct(at, end, 0, work)
    work[TYPE], work[SIZE] = field_of(_TYPE, _I32, -1, work), field_of(_SIZE, _I32, -1, work)
    work[STORED_SIZE] = field_of(_STORED_SIZE, _I32, -1, work)
    own = field_of(_OF_DICTIONARY if work[TYPE] else _OF_DATA, _STRUCT, 0, work)
    if at == 0 or own == 0 or field_of(_CHECKSUM, _I32, 0, work):
        return 0
    if read_struct(own, end, 0, work) == 0:
        return 0
    work[VALUES], work[ENCODING] = field_of(_VALUES, _I32, -1, work), field_of(_ENCODING, _I32, -1, work)
    work[DEFINITION] = field_of(_DEFINITION, _I32, -1, work)
    work[REPETITION] = field_of(_REPETITION, _I32, -1, work)
    for k in range(_NEEDED):
        if work[k] < 0:
            return 0
    if max(work[SIZE], work[VALUES]) > MOST_VALUES:
        return 0
    return at if work[STORED_SIZE] <= end - at else 0


def _count_values(at: Int, end: Int, memory: Ints) -> Int:
    """Count the values that the headers of all data pages state.

    -1 if a header cannot be read.
    """
    count: Int = 0
    work = items_at(memory.ctypes.data, memory)
    while at < end:
        behind = read_struct(at, end, 0, work)
        kind, size = field_of(_TYPE, _I32, -1, work), field_of(_STORED_SIZE, _I32, -1, work)
        if kind in (_DATA_PAGE, _DATA_PAGE_2):
            own = field_of(_OF_DATA if kind == _DATA_PAGE else _OF_DATA_2, _STRUCT, 0, work)
            if own == 0 or read_struct(own, end, _VALUES, work) == 0 or field_of(_VALUES, _I32, -1, work) < 0:
                return -1
            count += field_of(_VALUES, _I32, -1, work)
        if behind == 0 or size < 0 or size > end - behind:
            return -1
        at = behind + size
    return count


def _open_structs(end: Int, field: Int, count: Int, work: Work) -> Int:
    """Address of the first struct in a list, or 0.

    The list is a field of the struct that was read, and must have `count` structs.
    """
    value_at = field_of(field, _LIST, 0, work)
    found, kind, first = open_list(value_at, end) if value_at else (0, 0, 0)
    return first if kind == _STRUCT and found == count else 0


def _read_codecs(at: Int, end: Int, codecs: Ints, memory: Ints) -> bool:
    """Read the codecs of all column chunks of a footer.

    Writes them to `codecs` [row groups, columns], -1 where none is stated.
    """
    groups, columns = codecs.shape
    work = items_at(memory.ctypes.data, memory)
    at = open_structs(end, _ROW_GROUPS, groups, work) if read_struct(at, end, _ROW_GROUPS, work) else 0
    for group in range(groups):
        behind = read_struct(at, end, 0, work) if at else 0
        chunk = open_structs(end, _CHUNKS, columns, work) if behind else 0
        for column in range(columns):
            next_chunk = read_struct(chunk, end, 0, work) if chunk else 0
            metadata = field_of(_METADATA, _STRUCT, 0, work) if next_chunk else 0
            is_read = metadata > 0 and read_struct(metadata, end, _CODEC, work) > 0
            codecs[group, column] = field_of(_CODEC, _I32, -1, work) if is_read else -1
            chunk = next_chunk
        at = behind if chunk else 0
    return bool(at > 0)


_work = types.CPointer(int64)
varint = part(types.Tuple((uint64, int64))(int64, int64))(_varint)
integer = part(types.UniTuple(int64, 2)(int64, int64))(_integer)
skip_value = part(int64(int64, int64, int64))(_skip_value)
next_field = part(types.UniTuple(int64, 3)(int64, int64, int64))(_next_field)
open_list = part(types.UniTuple(int64, 3)(int64, int64))(_open_list)
skip = part(int64(int64, int64, int64, _work))(_skip)
read_struct = part(int64(int64, int64, int64, _work))(_read_struct)
field_of = part(int64(int64, int64, int64, _work))(_field)
read_header = part(int64(int64, int64, _work))(_read_header)
count_values = kernel(int64(int64, int64, int64[::1]))(_count_values)
open_structs = part(int64(int64, int64, int64, _work))(_open_structs)
read_codecs = kernel(types.boolean(int64, int64, int64[:, ::1], int64[::1]))(_read_codecs)
