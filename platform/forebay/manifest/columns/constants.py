"""Columns with one value in a whole file, which the file does not hold."""

from __future__ import annotations

import pyarrow as pa

from forebay.manifest.columns.arrow_types import parse_type


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


def has_nulls(data_type: str) -> bool:
    """Whether a column of this type can be made of nulls: not structs, maps and unknown extensions."""
    return not isinstance(parse_type(data_type), pa.OpaqueType)
