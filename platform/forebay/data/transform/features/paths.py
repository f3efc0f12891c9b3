"""Paths into nested columns.

`user.age` of a struct, `items.price` of a list of structs, `counts.keys` of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.parquet.decoded_table import Columns, DecodedTable, names_of
from forebay.data.parquet.struct_paths import held_steps, steps_of, top_column
from forebay.errors import MissingColumn

_STEPS_OF_MAP = ("keys", "values")


def schema_with_paths(schema: Mapping[str, pa.DataType], paths: Iterable[str]) -> dict[str, pa.DataType]:
    """Types of columns and of `paths` into them.

    Paths that begin with no column are left out. Raises `MissingColumn` for a path with a step that its column does not
    have.
    """
    found = dict(schema)
    for path in paths:
        if (top := top_column(path, schema)) is not None:
            found[path] = _type_at(path, top, schema[top])
    return found


def read_paths(paths: Iterable[str], schema: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """Columns to read for `paths`, each once.

    For structs only the fields in use, for lists and maps all.
    """
    found = []
    for path in paths:
        top = top_column(path, schema)
        if top is None:
            found.append(path)
            continue
        held, _ = held_steps(schema[top], steps_of(path, top))
        found.append(".".join([top, *held]))
    return tuple(dict.fromkeys(found))


def with_paths(table: Columns, paths: Sequence[str]) -> Columns:
    """Add a column for each missing path.

    A field of a null is null.
    """
    # Arrow makes a new list of names for each question: for 100 columns these took 4 ms a row group.
    known = set(names_of(table))
    for path in paths:
        if path in known or (top := top_column(path, known)) is None:
            continue
        kind = _type_at(path, top, table[top].type)
        chunks = table[top].chunks
        for step in steps_of(path, top):
            chunks = [_take_step(chunk, step) for chunk in chunks]
        column = pa.chunked_array(chunks, kind)
        if isinstance(table, DecodedTable):
            table = table.with_columns({path: column}, [*table.names, path])
        else:
            table = table.append_column(path, column)
        known.add(path)
    return table


def _type_at(path: str, top: str, kind: pa.DataType) -> pa.DataType:
    for step in steps_of(path, top):
        inner = _type_of_step(kind, step)
        if inner is None:
            names = [field.name for field in _struct_of(kind) or ()] or (_STEPS_OF_MAP if pa.types.is_map(kind) else ())
            raise MissingColumn(
                f"There is no {path!r}: {step!r} is not in {kind}. "
                + (
                    f"It has {', '.join(names[:20])}."
                    if names
                    else "Only structs, lists of structs and maps have paths."
                ),
                column=path,
                columns=tuple(names),
                close=(),
            )
        kind = inner
    return kind


def _struct_of(kind: pa.DataType) -> pa.StructType | None:
    """Struct type of a column or its list items.

    None for other types.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _struct_of(kind.value_type)
    return kind if pa.types.is_struct(kind) else None


def _type_of_step(kind: pa.DataType, step: str) -> pa.DataType | None:
    if pa.types.is_map(kind):
        return pa.list_({"keys": kind.key_type, "values": kind.item_type}[step]) if step in _STEPS_OF_MAP else None
    if pa.types.is_struct(kind):
        return kind.field(step).type if kind.get_field_index(step) >= 0 else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _type_of_step(kind.value_type, step)
        return None if inner is None else pa.list_(inner) if pa.types.is_list(kind) else pa.large_list(inner)
    return None


def _take_step(array: pa.Array, step: str) -> pa.Array:
    if pa.types.is_struct(array.type):
        return pc.struct_field(array, [step])
    if pa.types.is_map(array.type):
        values = array.keys if step == "keys" else array.items
    else:
        values = _take_step(array.values, step)
    # Copied: Arrow takes no mask beside offsets that are a slice.
    offsets = pa.array(array.offsets.to_numpy())
    kind = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return kind.from_arrays(offsets, values, mask=pc.is_null(array))
