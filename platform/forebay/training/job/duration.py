"""Seconds from texts such as `10m`, `90s`, `1h30m`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "": 1.0}
_MOST_S = 1e300
"""A larger whole number may be too large for a float."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|min|m|s|)")


def seconds_of(value: Any) -> float:
    """Return `value` in seconds.

    A number without a unit is in seconds. Raises `ValueError` for anything else, and for less than 0.

    >>> seconds_of("1h30m"), seconds_of("90s"), seconds_of(2.5)
    (5400.0, 90.0, 2.5)
    """
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a time")  # noqa: TRY004 - pydantic turns only this into its own error
    if isinstance(value, int | float):
        seconds = float(value) if abs(value) < _MOST_S else math.inf
    else:
        text = str(value).replace(" ", "").lower()
        parts = _PART.findall(text)
        if not text or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("write 90s, 10m, 1h30m, or a number of seconds")
        if len(parts) > 1 and any(not unit for _, unit in parts):
            raise ValueError("give every number its unit, as in 1h30m")
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError("a time is 0 or more")
    return seconds


Seconds = Annotated[float, BeforeValidator(seconds_of)]
"""Type of a job's parameter that is a time: float seconds in the function, `10m` or `1h30m` on the command line."""
