"""User times and durations, as integers of a time column."""

from __future__ import annotations

import datetime
import re
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.data.transform.features.timestamps import NANOSECONDS
from forebay.errors import InvalidOption

_NANOSECONDS = {**NANOSECONDS, "w": 7 * NANOSECONDS["d"]}
_NUMPY_UNITS = {"m": "min", "D": "d", "W": "w"}
_DURATION = re.compile(r"\s*(\d+)\s*(ns|us|ms|s|min|h|d|w)\s*")
_ZONE = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")
_ISO = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?)?)?)?")
"""NumPy takes more: an empty text, `NaT`, `now`, which cut anywhere."""


def ticks_of(option: str, value: object, column: pa.DataType) -> int:
    """Convert a time to an integer of `column`.

    `value` is a time for a timestamp or date column, and an integer for an integer column. A column with a zone needs a
    time with an offset, such as `2017-07-01T00:00+02:00`, and one without needs a time without. Raises `InvalidOption`
    for anything else, and for a time between two integers of the column.
    """
    if pa.types.is_integer(column):
        if _is_whole(value):
            return int(value)  # type: ignore[call-overload, no-any-return]
        raise InvalidOption(f"{option}={value!r}, but the time column is {column}: give an integer.", value=value)
    text = value.isoformat() if isinstance(value, datetime.date) else str(value)
    zone = getattr(column, "tz", None)
    offset = _ZONE.search(text) if "T" in text or " " in text or text.endswith("Z") else None
    if (zone is not None) != (offset is not None):
        remedy = (
            "with its offset, such as 2017-07-01T00:00+00:00" if zone else "without one, in the times of the column"
        )
        raise InvalidOption(
            f"{option}={value!r} has {'an' if offset else 'no'} offset from UTC, but the time column is {column}. Give "
            f"the time {remedy}.",
            value=value,
        )
    nanoseconds = _nanoseconds(option, value, text[: offset.start()] if offset else text)
    nanoseconds -= _offset_ns(offset.group()) if offset else 0
    return _divided(option, value, nanoseconds, column)


def duration_ticks(option: str, value: object, column: pa.DataType) -> int:
    """Convert a duration to the unit of `column`.

    `value` is text such as `"2h"`, or a `timedelta`, also of NumPy or pandas. An integer counts that unit itself.
    Raises `InvalidOption` for anything else, and for a duration that is not a multiple of the unit.
    """
    if _is_whole(value) and int(value) > 0:  # type: ignore[call-overload]
        return int(value)  # type: ignore[call-overload, no-any-return]
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, datetime.timedelta):
        # A Timedelta of pandas has nanoseconds besides.
        nanoseconds = (value // datetime.timedelta(microseconds=1)) * 1000 + getattr(value, "nanoseconds", 0)
    elif isinstance(value, np.timedelta64):
        unit, count = np.datetime_data(value.dtype)
        nanoseconds = int(value.astype(np.int64)) * count * _NANOSECONDS.get(_NUMPY_UNITS.get(unit, unit), 0)
    elif match:
        nanoseconds = int(match[1]) * _NANOSECONDS[match[2]]
    else:
        nanoseconds = 0
    if nanoseconds <= 0 or pa.types.is_integer(column):
        raise InvalidOption(
            f'{option}={value!r}, and the time column is {column}: give a duration such as "2h" (ns, us, ms, s, min, '
            "h, d, w) for timestamps and dates, or a whole number of its unit.",
            value=value,
        )
    return _divided(option, value, nanoseconds, column)


def duration_text(ticks: int, column: pa.DataType) -> str:
    """Text of a duration in its largest whole unit.

    `duration_ticks` takes it.

    >>> duration_text(5_400_000_000, pa.timestamp("us")), duration_text(14, pa.date32()), duration_text(3, pa.int64())
    ('90min', '2w', '3')
    """
    if pa.types.is_integer(column):
        return str(ticks)
    nanoseconds = ticks * _tick_ns(column)
    unit = max((size, name) for name, size in _NANOSECONDS.items() if nanoseconds % size == 0)[1] if ticks else "s"
    return f"{nanoseconds // _NANOSECONDS[unit]}{unit}"


def time_text(ticks: int, column: pa.DataType) -> str:
    """Time of `column` as ISO 8601.

    The text is in UTC for a column with a zone, and a number for an integer column.

    >>> time_text(1_577_854_800_500, pa.timestamp("ms")), time_text(18_262, pa.date32()), time_text(7, pa.int64())
    ('2020-01-01T05:00:00.5', '2020-01-01', '7')
    >>> time_text(1_577_854_800, pa.timestamp("s", "Europe/Berlin"))
    '2020-01-01T05:00:00Z'
    """
    if pa.types.is_integer(column):
        return str(ticks)
    if pa.types.is_date(column):
        return str(np.datetime64(ticks * _tick_ns(column) // _NANOSECONDS["d"], "D"))
    text = str(np.datetime64(ticks, column.unit))
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text if column.tz is None else f"{text}Z"


def _is_whole(value: object) -> bool:
    """Whether a value is an integer. NumPy takes a timedelta64 for one, of its own unit."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.timedelta64)


def _nanoseconds(option: str, value: object, text: str) -> int:
    """Nanoseconds from 1970 to the time `text`.

    A Python integer: int64 ends in the year 2262.
    """
    try:
        if not _ISO.fullmatch(text):
            raise ValueError(f"{text!r} is not of this form")
        whole, _, fraction = text.partition(".")
        seconds = int(np.datetime64(whole, "s").astype(np.int64))
    except ValueError as error:
        raise InvalidOption(
            f"{option}={value!r} is not a time: {error}. Give ISO 8601 text, such as 2017-07-01 or "
            "2017-07-01T00:00:00.5.",
            value=value,
        ) from error
    return seconds * _NANOSECONDS["s"] + int(fraction.ljust(9, "0"))


def _divided(option: str, value: object, nanoseconds: int, column: pa.DataType) -> int:
    unit = _tick_ns(column)
    if nanoseconds % unit:
        raise InvalidOption(
            f"{option}={value!r} lies between two values of the time column, which is {column}. Round it to its unit.",
            value=value,
        )
    return nanoseconds // unit


def _tick_ns(column: Any) -> int:
    if pa.types.is_date32(column):
        return _NANOSECONDS["d"]
    return _NANOSECONDS["ms" if pa.types.is_date64(column) else column.unit]


def _offset_ns(text: str) -> int:
    if text == "Z":
        return 0
    minutes = int(text[1:3]) * 60 + (int(text[-2:]) if len(text) > 3 else 0)
    return (minutes if text[0] == "+" else -minutes) * _NANOSECONDS["min"]
