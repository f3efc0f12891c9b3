"""Paths into structs: the column that a path begins with, and how far a type leads along it."""

from __future__ import annotations

from collections.abc import Container

import pyarrow as pa


def top_column(path: str, columns: Container[str]) -> str | None:
    """Column that a path into it begins with: the path itself, or its longest beginning before a dot.

    >>> top_column("user.age", {"user", "price"}), top_column("price", {"user", "price"}), top_column("site", {"user"})
    ('user', 'price', None)
    """
    while path not in columns and "." in path:
        path = path.rpartition(".")[0]
    return path if path in columns else None


def steps_of(path: str, top: str) -> list[str]:
    """Names of the fields that lead from column `top` to `path`.

    >>> steps_of("user.home.zip", "user"), steps_of("user", "user")
    (['home', 'zip'], [])
    """
    return path[len(top) + 1 :].split(".") if path != top else []


def held_steps(kind: pa.DataType, steps: list[str]) -> tuple[list[str], pa.DataType]:
    """First of `steps` that lead through the fields of structs from a column of type `kind`, and the type there."""
    held: list[str] = []
    for step in steps:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            break
        kind = kind.field(step).type
        held.append(step)
    return held, kind
