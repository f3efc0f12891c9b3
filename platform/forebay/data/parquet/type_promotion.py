"""One type for a column that files hold with several.

Writers leave hints of Arrow beside equal Parquet types, and tables widen numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pyarrow as pa

from forebay.data.parquet.arrow_types import has_nulls, parse_type

_TEXTS = {pa.large_string(): pa.string(), pa.string_view(): pa.string()}
_BINARIES = {pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary()}
_PLAIN = _TEXTS | _BINARIES | {pa.time32("s"): pa.time32("ms"), pa.date64(): pa.date32()}
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_MOST_DIGITS_128 = 38
_NULL = "null"


def common_type(types: Iterable[str]) -> str | None:
    """Type that holds every value of some types, or None.

    The order of `types` does not matter. One type stays as it is, also beside null. Others give their plain type:

    >>> common_type(["string_view", "string"]), common_type(["int8", "int64", "null"]), common_type(["int64", "double"])
    ('string', 'int64', None)
    """
    found = {*types}
    others = sorted(found - {_NULL})
    if len(others) < 2:
        kind = others[0] if others else _NULL
        return kind if len(found) == 1 or has_nulls(kind) else None
    common = functools.reduce(_wider_or_none, [plain_type(parse_type(text)) for text in others])
    return None if common is None else str(common)


def is_same_parquet_type(one: str, other: str) -> bool:
    """Whether two types differ in hints of Arrow alone."""
    return one == other or plain_type(parse_type(one)) == plain_type(parse_type(other))


def type_of_table(declared: str) -> str:
    """Plain type of a column of a lake table."""
    return str(plain_type(parse_type(declared)))


def is_read_as(there: str, declared: str) -> bool:
    """Whether a table reads a file's column as `declared`.

    These are the widenings of Delta's protocol, where a column of type `there` has all its values in the other type.
    Times are cut to the unit of the table. Times of INT96 have no zone in a file, and are in UTC.
    """
    return _is_held(plain_type(parse_type(there)), plain_type(parse_type(declared)))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Type of a Parquet column without the hints of a writer.

    Small strings, binary values and lists, no dictionaries, views and extensions, zones in UTC.
    """
    if isinstance(kind, pa.OpaqueType):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return _plain_nested(kind) if pa.types.is_nested(kind) else _plain_flat(kind)


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    is_list = hasattr(kind, "value_type")
    return pa.list_(pa.field("element", plain_type(kind.value_type))) if is_list else kind


def _plain_flat(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, kind.tz and "UTC")
    return _decimal(kind.precision, kind.scale) if pa.types.is_decimal(kind) else _PLAIN.get(kind, kind)


def _decimal(precision: int, scale: int) -> pa.DataType:
    return (pa.decimal128 if precision <= _MOST_DIGITS_128 else pa.decimal256)(precision, scale)


def _wider_or_none(one: pa.DataType | None, other: pa.DataType) -> pa.DataType | None:
    return None if one is None else _wider(one, other)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Plain type that holds all values of two plain types."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    is_nested = pa.types.is_nested(one) and pa.types.is_nested(other)
    return _wider_nested(one, other) if is_nested else _wider_number(one, other)


def _wider_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_list(one) and types.is_list(other):
        value = _wider(one.value_type, other.value_type)
        return None if value is None else pa.list_(pa.field("element", value))
    if types.is_map(one) and types.is_map(other):
        key, item = _wider(one.key_type, other.key_type), _wider(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return _wider_struct(one, other) if types.is_struct(one) and types.is_struct(other) else None


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_integer(one) and types.is_integer(other):
        return _wider_integer(one, other)
    if types.is_floating(one) and types.is_floating(other):
        return _FLOATS[max(one.bit_width, other.bit_width)]
    if types.is_decimal(one) and types.is_decimal(other) and one.scale == other.scale:
        return _decimal(max(one.precision, other.precision), one.scale)
    return None


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    is_unsigned = pa.types.is_unsigned_integer(one), pa.types.is_unsigned_integer(other)
    if is_unsigned[0] == is_unsigned[1]:
        return (_UNSIGNED if is_unsigned[0] else _SIGNED)[max(one.bit_width, other.bit_width)]
    unsigned, signed = (one, other) if is_unsigned[0] else (other, one)
    return _SIGNED.get(max(2 * unsigned.bit_width, signed.bit_width))


def _wider_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    names, names_there = [field.name for field in one], [field.name for field in other]
    if sorted(names) != sorted(names_there) or len(set(names)) < len(names):
        return None
    fields = []
    # Files that order the fields in two ways have a third one, so that no file is first.
    for name in names if names == names_there else sorted(names):
        kind = _wider(one.field(name).type, other.field(name).type)
        if kind is None:
            return None
        fields.append(pa.field(name, kind))
    return pa.struct(fields)


def _is_held(there: pa.DataType, table: pa.DataType) -> bool:
    if _wider(there, table) == table:
        return True
    if pa.types.is_timestamp(table):
        return _is_held_time(there, table)
    return _is_held_nested(there, table) if pa.types.is_nested(table) else _is_held_number(there, table)


def _is_held_time(there: pa.DataType, table: pa.TimestampType) -> bool:
    if pa.types.is_timestamp(there):
        return there.tz == table.tz or (there.tz is None and there.unit == "ns")
    return pa.types.is_date32(there) and table.tz is None


def _is_held_number(there: pa.DataType, table: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(there) and types.is_float64(table):
        return bool(there.bit_width <= 32)
    if types.is_integer(there) and types.is_decimal(table):
        return bool(table.precision - table.scale >= _INTEGER_DIGITS[there.bit_width])
    if types.is_decimal(there) and types.is_decimal(table):
        whole, whole_there = table.precision - table.scale, there.precision - there.scale
        return bool(table.scale >= there.scale and whole >= whole_there)
    return False


def _is_held_nested(there: pa.DataType, table: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(there) and types.is_list(table):
        return _is_held(there.value_type, table.value_type)
    if types.is_map(there) and types.is_map(table):
        return _is_held(there.key_type, table.key_type) and _is_held(there.item_type, table.item_type)
    if types.is_struct(there) and types.is_struct(table):
        shared = {field.name for field in there} & {field.name for field in table}
        return all(_is_held(there.field(name).type, table.field(name).type) for name in shared)
    return False
