"""Columns of a file by field id.

Since it was written, its table may have renamed, added and widened columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from forebay.data.manifest.manifest import Field
from forebay.data.parquet.column_casts import cast_column
from forebay.errors import InvalidOption

_ID = b"PARQUET:field_id"


class StoredColumns(NamedTuple):
    """Columns of a table that a file holds.

    `stored` has the columns with another name or type there, as in `File`.
    """

    fields: tuple[Field, ...]
    stored: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FieldIds:
    """Columns of a table by id.

    Attributes:
        schema: Columns of the table. The metadata of each field, also of nested ones, holds its id.
        names: Id of a column by its name in files without ids.
        defaults: Text of the value of a column in files that do not hold it. Null for all others.
    """

    schema: pa.Schema
    names: Mapping[str, int]
    defaults: Mapping[str, str]

    def find(self, uri: str, schema: pa.Schema, selected: Collection[str]) -> StoredColumns:
        """Columns of the table in a file with this `schema`.

        Raises:
            InvalidOption: A selected column cannot be read as the table has it now: a field within it was renamed, or
                its type cannot be cast. Or two columns have one id, or the file has no ids and the table no names.
        """
        by_id: dict[int, pa.Field] = {}
        has_ids = any(_id_of(field) is not None for field in schema)
        if not (has_ids or self.names):
            raise InvalidOption(
                f"{uri} has no field ids, and the table has no schema.name-mapping.default: nothing says which of the "
                "columns are the table's. Set this property of the table, or write the file again.",
                uri=uri,
            )
        for field in schema:
            number = _id_of(field) if has_ids else self.names.get(field.name)
            if number is not None and by_id.setdefault(number, field) is not field:
                raise InvalidOption(f"{uri} has two columns with the field id {number}. Write the file again.", uri=uri)
        fields, stored = [], []
        for column in self.schema:
            number = _id_of(column)
            if number not in by_id:
                continue
            found = by_id[number]
            if column.name in selected:
                _check(uri, column, found, has_ids)
            kind, kind_there = str(column.type), str(found.type)
            fields.append(Field(name=column.name, type=kind, nullable=found.nullable))
            if (found.name, kind_there) != (column.name, kind):
                stored.append((column.name, found.name, kind_there))
        return StoredColumns(tuple(fields), tuple(stored))


def _check(uri: str, column: pa.Field, found: pa.Field, has_ids: bool) -> None:
    problem = _renamed(column, found) if has_ids else ""
    if not problem and str(column.type) != str(found.type):
        try:
            cast_column(pa.chunked_array([pa.nulls(0, found.type)]), str(column.type))
        except pa.ArrowException as error:
            problem = f"is {found.type} there, which cannot be read as {column.type} ({error})"
    if problem:
        raise InvalidOption(
            f"Column {column.name!r} of {uri} {problem}. Rewrite the table's files (rewrite_data_files), or leave the "
            "column out (columns=[...]).",
            column=column.name,
            uri=uri,
        )


def _renamed(column: pa.Field, found: pa.Field) -> str:
    """Problem with the fields within a column.

    Fields of structs are read by name, so a name must mean one id.
    """
    now, there = dict(_nested(column.type, "")), dict(_nested(found.type, ""))
    names = {number: path for path, number in now.items()}
    for path, number in there.items():
        if names.get(number, path) != path or now.get(path, number) != number:
            return f"has the field {path.lstrip('.')!r}, which the table has renamed or replaced since"
    return ""


def _nested(kind: pa.DataType, path: str) -> Iterator[tuple[str, int]]:
    """Path and id of each field below a type.

    Items of lists and maps have fixed names, as writers differ.
    """
    if pa.types.is_struct(kind):
        children = [(f"{path}.{field.name}", field) for field in kind]
    elif pa.types.is_map(kind):
        children = [(f"{path}.key", kind.key_field), (f"{path}.value", kind.item_field)]
    elif pa.types.is_nested(kind):
        children = [(f"{path}.item", kind.value_field)]
    else:
        return
    for below, field in children:
        if (number := _id_of(field)) is not None:
            yield below, number
        yield from _nested(field.type, below)


def _id_of(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_ID)
    return None if text is None else int(text)
