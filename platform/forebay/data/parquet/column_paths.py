"""Paths into nested columns.

`user.age` of a struct, `items.price` of a list of structs, `counts.keys` of a map.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from keyword import iskeyword

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import MissingColumn

_MOST_LISTED = 20
_STEPS_OF_MAP = ("keys", "values")


def top_column(path: str, columns: Container[str]) -> str | None:
    """Top-level column of a path.

    The path itself, or its longest beginning before a dot.

    >>> top_column("user.age", {"user", "price"}), top_column("price", {"user", "price"}), top_column("site", {"user"})
    ('user', 'price', None)
    """
    while path not in columns and "." in path:
        path = path.rpartition(".")[0]
    return path if path in columns else None


def operand_text(path: str) -> str:
    """Write a column or a path as a row filter reads it.

    >>> operand_text("user.age"), operand_text("my label"), operand_text("from")
    ('user.age', "col('my label')", "col('from')")
    """
    # Python reads letters beyond ASCII in another form (NFKC), which may be another column.
    is_plain = path.isascii() and all(step.isidentifier() and not iskeyword(step) for step in path.split("."))
    return path if is_plain else f"col({path!r})"


def steps_of(path: str, top: str) -> list[str]:
    """Field names from column `top` to `path`.

    >>> steps_of("user.home.zip", "user"), steps_of("user", "user")
    (['home', 'zip'], [])
    """
    return path[len(top) + 1 :].split(".") if path != top else []


def held_steps(kind: pa.DataType, steps: list[str]) -> tuple[list[str], pa.DataType]:
    """Steps of a path that exist in a type.

    They lead through the fields of structs from a column of type `kind`. With the type at their end.
    """
    held: list[str] = []
    for step in steps:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            break
        kind = kind.field(step).type
        held.append(step)
    return held, kind


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


def schema_with_paths(schema: Mapping[str, pa.DataType], paths: Iterable[str]) -> dict[str, pa.DataType]:
    """Types of columns and of `paths` into them.

    Paths that begin with no column are left out. Raises `MissingColumn` for a path with a step that its column does not
    have.
    """
    found = dict(schema)
    for path in paths:
        if (top := top_column(path, schema)) is not None:
            found[path] = type_at(path, top, schema[top])
    return found


def type_at(path: str, top: str, kind: pa.DataType) -> pa.DataType:
    """Type of `path`, which begins with column `top` of type `kind`.

    Raises `MissingColumn`.
    """
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


def require_path(path: str, types: Mapping[str, pa.DataType], where: str) -> None:
    """Check that `path` leads through fields of structs.

    It begins with a column of `where`. Raises `MissingColumn`.
    """
    top = top_column(path, types)
    assert top is not None, "its column was checked"
    held, found = held_steps(types[top], steps := steps_of(path, top))
    if held != steps:
        before = ".".join([top, *held])
        names = [f"{before}.{field.name}" for field in found] if pa.types.is_struct(found) else []
        raise MissingColumn(
            f"There is no {path!r} in {where}: {before!r} is {found}. "
            + (f"Give one of {', '.join(names[:_MOST_LISTED])}." if names else f"Give {before!r}, or another column."),
            column=path,
            columns=tuple(names),
            close=(),
        )


def column_at(table: pa.Table, path: str) -> pa.ChunkedArray:
    """Column of a table, or field of a struct.

    A field of a null is null.
    """
    top = top_column(path, table.column_names)
    assert top is not None, "the path was checked, and its column read"
    steps, column = steps_of(path, top), table[top]
    if not steps:
        return column
    _, kind = held_steps(column.type, steps)
    return pa.chunked_array([pc.struct_field(chunk, steps) for chunk in column.chunks], kind)
