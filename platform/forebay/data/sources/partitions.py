"""Partition columns from folder names.

Folders below the root of a dataset are named `key=value`, as Hive and Spark write them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from urllib.parse import unquote

from forebay.data.manifest.manifest import Field

NULL = "__HIVE_DEFAULT_PARTITION__"
_KEY_VALUE = re.compile(r"(?P<key>[^=]+)=(?P<value>.*)")
_INTEGER = re.compile(r"-?[0-9]+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

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
            value = unquote(match["value"])
            found[unquote(match["key"])] = None if value == NULL else value
    return tuple(found.items())


def partition_fields(files: Sequence[Values]) -> tuple[Field, ...]:
    """Partition columns of all files, with their types.

    The type holds all values: int64, else date32, else string.
    """
    texts: dict[str, set[str | None]] = {}
    for values in files:
        for name, text in values:
            texts.setdefault(name, set()).add(text)
    return tuple(Field(name=name, type=_type_of(found - {None})) for name, found in texts.items())


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
