"""Columns that a file does not hold, or holds in another type than the dataset."""

from __future__ import annotations

import pyarrow as pa

from forebay.data.parquet.arrow_types import parse_type


def constant_scalar(data_type: str, text: str | None) -> pa.Scalar:
    """Value of a column of type `data_type`. None is null. Raises `pa.ArrowException` if the text is no such value."""
    kind = parse_type(data_type)
    if text is None:
        return pa.scalar(None, kind)
    return pa.scalar(text, pa.string()).cast(kind)


def constant_array(data_type: str, text: str | None, rows: int) -> pa.Array:
    """Column of `rows` equal values."""
    if text is None:
        return pa.nulls(rows, parse_type(data_type))
    return pa.repeat(constant_scalar(data_type, text), rows)


def cast_column(column: pa.ChunkedArray, data_type: str) -> pa.ChunkedArray:
    """Column of a file as the type that the dataset has. Raises `pa.ArrowException` if a value does not fit.

    Times are cut to their new unit. Fields that a struct does not hold are null.
    """
    kind = parse_type(data_type)
    is_time = pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind)
    return column.cast(kind, safe=not is_time)


def has_nulls(data_type: str) -> bool:
    """Whether a column of this type can be made of nulls: not unknown extensions."""
    return not isinstance(parse_type(data_type), pa.OpaqueType)
