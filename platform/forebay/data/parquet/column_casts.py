"""Casts of decoded columns to the type of the dataset.

Exact: a value that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.type_promotion import plain_type

_VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)


def cast_column(column: pa.ChunkedArray, data_type: str) -> pa.ChunkedArray:
    """Cast a column of a file to the dataset's type.

    Raises `pa.ArrowException` if a value does not fit.

    Times are cut to their new unit. Fields that a struct does not hold are null.
    """
    return cast_to(column, parse_type(data_type))


def cast_to(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Same as `cast_column`, to a type of Arrow."""
    return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)


def has_views(kind: pa.DataType) -> bool:
    """Whether a type has views of text at any depth."""
    if any(is_kind(kind) for is_kind in _VIEWS):
        return True
    return any(has_views(kind.field(index).type) for index in range(kind.num_fields))


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Column with strings and binary values in place of views.

    Arrow 26 does not filter, take or sort views.
    """
    return cast_column(column, str(plain_type(column.type))) if has_views(column.type) else column


def table_without_views(table: pa.Table) -> pa.Table:
    """Table with columns as `without_views`."""
    for index, found in enumerate(table.schema):
        if has_views(found.type):
            column = without_views(table.column(index))
            table = table.set_column(index, found.with_type(column.type), column)
    return table


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Column whose equal values Arrow 26 finds and counts.

    It does for no extension types, such as JSON and UUID, and not for small decimals.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    is_small = pa.types.is_decimal32(column.type) or pa.types.is_decimal64(column.type)
    return column.cast(plain_type(column.type)) if is_small else column


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    types = pa.types
    if isinstance(array.type, pa.BaseExtensionType) and not isinstance(kind, pa.BaseExtensionType):
        return _cast(array.storage, kind)
    if types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if types.is_dictionary(array.type) and not types.is_dictionary(kind):
        return _cast(array.dictionary_decode(), kind)
    if types.is_nested(array.type) and (build := _NESTED.get(kind.id)):
        return build(array, kind)
    return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=types.is_timestamp(kind)))


def _cast_struct(array: pa.Array, kind: pa.StructType) -> pa.Array:
    there = {field.name: index for index, field in enumerate(array.type)}
    children = [
        _cast(array.field(there[field.name]), field.type) if field.name in there else pa.nulls(len(array), field.type)
        for field in kind
    ]
    if not children:
        return array.cast(kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))


def _cast_map(array: pa.Array, kind: pa.MapType) -> pa.Array:
    offsets = pa.array(array.offsets.to_numpy())  # copied: Arrow takes no mask beside offsets that are a slice
    keys, items = _cast(array.keys, kind.key_type), _cast(array.items, kind.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=pc.is_null(array))


def _cast_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast any kind of list to a list.

    Arrow 26 casts the list view [null, [1, 2]] to the list [null, []].
    """
    values = _cast(array.flatten(), kind.value_type)
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=pc.is_null(array))


_NESTED: dict[int, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    pa.struct([]).id: _cast_struct,
    pa.map_(pa.int8(), pa.int8()).id: _cast_map,
    pa.list_(pa.int8()).id: _cast_list,
}
