"""Partition columns from folder names.

Folders below the root of a dataset are named `key=value`, as Hive and Spark write them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

from forebay.data.manifest.manifest import Field
from forebay.data.parquet.arrow_types import constant_scalar, parse_type
from forebay.errors import InvalidOption

NULL = "__HIVE_DEFAULT_PARTITION__"
_KEY_VALUE = re.compile(r"(?P<key>[^=]+)=(?P<value>.*)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""Texts that an integer gives back: not 007, +7 or -0, which are other values as text."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

_NO_TYPES: Mapping[str, object] = {}

Values = tuple[tuple[str, str | None], ...]
"""Names of columns, and the text of their value in one file. None is null."""


def partition_values(path: str) -> Values:
    """Partition values in the folders of `path`.

    `path` is below the root. The innermost folder of a key counts.

    >>> partition_values("day=2024-01-31/site=%2Fa/x=1.parquet")
    (('day', '2024-01-31'), ('site', '/a'))
    """
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        if match := _KEY_VALUE.fullmatch(folder):
            value = _decoded(match["value"])
            found[_decoded(match["key"])] = None if value == NULL else value
    return tuple(found.items())


def _decoded(text: str) -> str:
    """Text without its percent escapes.

    As it is written if they are no UTF-8: two such values must not become one.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def partition_fields(files: Sequence[Values], types: Mapping[str, object] = _NO_TYPES) -> tuple[Field, ...]:
    """Partition columns of all files, with their types.

    The type holds all values as they are written: int64, else date32, else string. `types` are asked for instead.

    Raises `InvalidOption` for a type that is not known or does not hold a value, and for a name without folders.
    """
    texts: dict[str, set[str | None]] = {}
    for values in files:
        for name, text in values:
            texts.setdefault(name, set()).add(text)
    for name in sorted(types.keys() - texts.keys()):
        raise InvalidOption(
            f"partition_types names {name!r}, and no folder is named {name}=... Folders give the columns: "
            f"{', '.join(map(repr, texts)) or 'none'}.",
            column=name,
        )
    return tuple(
        Field(name=name, type=_asked(name, types[name], found) if name in types else _type_of(found - {None}))
        for name, found in texts.items()
    )


def _asked(name: str, asked: object, texts: set[str | None]) -> str:
    kind = parse_type(str(asked))
    if isinstance(kind, pa.OpaqueType):
        raise InvalidOption(
            f"partition_types={{{name!r}: {asked!r}}} is no type. Give the name of one, such as string, int32, "
            "float64, date32 or timestamp[us].",
            column=name,
        )
    for text in sorted(text for text in texts if text is not None):
        try:
            constant_scalar(str(kind), text)
        except pa.ArrowException as error:
            raise InvalidOption(
                f"partition_types={{{name!r}: {asked!r}}} does not hold the value of a folder {name}={text:.60}: "
                f"{error}. Give a type that holds all values, such as string.",
                column=name,
                value=text,
            ) from error
    return str(kind)


def _type_of(texts: set[str | None]) -> str:
    if texts and all(_is_integer(str(text)) for text in texts):
        return "int64"
    if texts and all(_is_date(str(text)) for text in texts):
        return "date32[day]"
    return "string"


def _is_integer(text: str) -> bool:
    return bool(_INTEGER.fullmatch(text)) and -(1 << 63) <= int(text) < 1 << 63


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
