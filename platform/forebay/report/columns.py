"""Columns of tables, defined once per kind of row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")
NONE = "-"
"""Text for a value of None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """Title, value and text of a table's column.

    Rows are described by `Row`.

    `value` returns the value of a row, for sorting and for data frames. `text` returns it for display.
    """

    title: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]

    def titled(self, title: str) -> Column[Row]:
        """Copy with another title."""
        return replace(self, title=title)


def column(title: str, value: Callable[[Row], Any], format_value: Callable[[Any], str] = str) -> Column[Row]:
    """Column whose text is `format_value(value)`, or `-` for None.

    >>> age = column("age", lambda row: row.get("age"), "{} s".format)
    >>> age.text({"age": 3}), age.text({})
    ('3 s', '-')
    """

    def text(row: Row) -> str:
        found = value(row)
        return NONE if found is None else format_value(found)

    return Column(title=title, value=value, text=text)
