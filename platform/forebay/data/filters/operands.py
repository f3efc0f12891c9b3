"""Operands of a row filter in one file.

Columns and fields of structs, as expressions of pyarrow with types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.parquet.column_paths import held_steps, steps_of, top_column
from forebay.data.parquet.schemas import missing_column
from forebay.errors import InvalidOption, MissingColumn

_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Constant:
    """Column with one value in a whole file."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Stored:
    """A column under another name or type in a file.

    `of_table` is the type that the dataset has.
    """

    name: str
    type: pa.DataType
    of_table: pa.DataType


ColumnKinds = Mapping[str, "pa.DataType | Stored | Constant"]
"""Type of each column that a file holds, and the value of each that it does not hold."""


class Operand(NamedTuple):
    """Values of a comparison, and their type in the file."""

    expression: pc.Expression
    type: pa.DataType


def operand(path: str, kinds: ColumnKinds, uri: str) -> Operand:
    """Operand for a column or a path into a struct.

    A field of a null is null.

    Raises:
        MissingColumn: There is no such column or field. The text of the error names `uri`.
        InvalidOption: The path leads through a list or a map, of which a row has many values.
    """
    top = top_column(path, kinds)
    if top is None:
        raise missing_column(path, tuple(kinds), uri)
    steps = steps_of(path, top)
    match kinds[top]:
        case Constant(value=value):
            kind = _type_at(path, top, value.type, uri)
            return Operand(pc.scalar(value if not steps else pa.scalar(None, kind)), kind)
        case pa.DataType() as in_file if pa.types.is_null(in_file):  # one of several files, so the path may exist
            return Operand(pc.field(top), in_file)
        case Stored(name=name, type=in_file, of_table=of_table):
            of_path = _type_at(path, top, of_table, uri)
            held, kind = held_steps(in_file, steps)
            if held != steps:  # a field that the table got later
                return Operand(pc.scalar(pa.scalar(None, of_path)), of_path)
            return Operand(pc.field(name, *steps), kind)
        case in_file:
            return Operand(pc.field(top, *steps), _type_at(path, top, in_file, uri))


def _type_at(path: str, top: str, kind: pa.DataType, uri: str) -> pa.DataType:
    steps = steps_of(path, top)
    held, found = held_steps(kind, steps)
    if held == steps:
        return found
    before, step = ".".join([top, *held]), steps[len(held)]
    if not pa.types.is_struct(found) and pa.types.is_nested(found):
        raise InvalidOption(
            f"where compares {path!r}, which leads through {before!r}, and that is {found} in {uri}: a row has many "
            "values there. Compare a field of a struct, or write the value to a column of its own.",
            column=path,
            type=str(found),
        )
    names = [field.name for field in found] if pa.types.is_struct(found) else []
    raise MissingColumn(
        f"There is no {path!r} in {uri}: {before!r} is {found}, without a field {step!r}. "
        + (f"Compare one of {', '.join(names[:_MOST_LISTED])}." if names else f"Compare {before!r} itself."),
        column=path,
        columns=tuple(f"{before}.{name}" for name in names),
        close=(),
    )
