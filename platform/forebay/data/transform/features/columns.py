"""Checks of the columns that a feature needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import pyarrow as pa

from forebay.errors import InvalidOption, MissingColumn, WrongType
from forebay.runtime.formatting import near_names

_MOST_LISTED = 20
_REMEDY = "It takes integers, floats, bools and decimals; use Categorical for ids."


def column_names(feature: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return `columns` as a tuple of names.

    `columns` is one name or a sequence. Raises `InvalidOption` for no name, or a repeated one.
    """
    if isinstance(columns, AbstractSet):
        raise InvalidOption(
            f"{feature}(columns={columns!r}) has no order, and every process would make another one. Give a list."
        )
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidOption(f"{feature}(columns={columns!r}) names no column. Give one name or a sequence of names.")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidOption(
            f"{feature} names {', '.join(map(repr, twice))} twice. Name each column once.", columns=twice
        )
    return names


def column_type(feature: str, column: str, schema: Mapping[str, pa.DataType]) -> pa.DataType:
    """Type of `column`.

    Raises `MissingColumn`, which lists the columns and suggests similar names.
    """
    if column in schema:
        return schema[column]
    listed = ", ".join(list(schema)[:_MOST_LISTED]) + (", ..." if len(schema) > _MOST_LISTED else "")
    close = near_names(column, schema)
    meant = (
        f" Did you mean {' or '.join(map(repr, close))}?" if close else " Correct the name, or scan with this column."
    )
    raise MissingColumn(
        f"{feature} asks for column {column!r}, which is not among the {len(schema)} columns: {listed}.{meant}",
        column=column,
        columns=tuple(schema),
        close=tuple(close),
    )


def wrong_type(feature: str, column: str, found: pa.DataType, wanted: str) -> WrongType:
    """Error for a `column` of type `found`.

    `wanted` is a sentence about what the feature takes.
    """
    remedy = paths_into(column, found)
    shown = str(found)
    if isinstance(found, pa.OpaqueType):  # of a type that a manifest does not describe
        shown, remedy = found.type_name, " Make arrays of it by a function: fb.Transform(fn=...)."
    return WrongType(
        f"{feature} was given column {column!r}, which is {shown}. {wanted}{remedy}", column=column, found=shown
    )


def check_numeric(feature: str, column: str, found: pa.DataType, dtype: str, remedy: str = _REMEDY) -> None:
    """Raise `WrongType` unless `found` converts to `dtype`.

    No value may lose its fraction.
    """
    values = found.value_type if pa.types.is_dictionary(found) else found
    fractional = pa.types.is_floating(values) or (pa.types.is_decimal(values) and values.scale > 0)
    if not (
        fractional
        or pa.types.is_integer(values)
        or pa.types.is_decimal(values)
        or pa.types.is_boolean(values)
        or pa.types.is_null(values)
    ):
        raise wrong_type(feature, column, found, remedy)
    if fractional and not dtype.startswith("float"):
        raise wrong_type(feature, column, found, f"dtype={dtype!r} would cut off fractions: use a float dtype.")


def paths_into(column: str, found: pa.DataType) -> str:
    """Sentence, after a space, with the paths that lead into a column. Empty if none does."""
    if pa.types.is_map(found):
        return f" A map has lists of keys and of values, for Ragged: {column}.keys, {column}.values."
    inner = found.value_type if pa.types.is_list(found) or pa.types.is_large_list(found) else found
    if pa.types.is_struct(inner) and inner.num_fields:
        return f" Name a field of it: {column}.{inner.field(0).name}."
    return ""
