"""Axes of a picture: ranges, round ticks, tick labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from forebay.runtime.formatting import count_text, time_text

WIDTH = 560
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 16, 40
"""Margins, in the unit of the picture. A picture is shown at about one pixel per unit, or less on a narrow screen."""
FONT = 13
DAY_S = 86_400
LOG_TICKS_FROM = 3.0
TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY_S)
SMALLEST, LARGEST = 1e-150, 1e150
ROUNDING = 1e-9
"""Tolerance for sums of steps: three times 0.1 is more than 0.3."""


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """Map the range `low` to `high` onto coordinates.

    From `start` to `end`.

    A value outside is moved to the nearer end. A logarithmic axis needs `low` > 0. `is_time`: values are seconds.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    is_time: bool = False

    def __call__(self, value: float) -> float:
        low, high, inside = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, inside = math.log10(low), math.log10(high), math.log10(inside)
        return self.start + (inside - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """Return round values within the axis.

        At most `count` + 1, or powers of ten.

        >>> PlotAxis(0.0, 9.7, 0, 100).ticks(5)
        [0.0, 2.0, 4.0, 6.0, 8.0]
        >>> axis = PlotAxis(0.0, 190.0, 0, 100, is_time=True)
        >>> [axis.text(value) for value in axis.ticks(5)]
        ['0:00', '1:00', '2:00', '3:00']
        """
        # Within a factor of three, powers of ten are too far apart.
        if self.is_log and self.high / self.low >= LOG_TICKS_FROM:
            return _decades(self.low, self.high)
        step = (time_step if self.is_time else round_step)((self.high - self.low) / count)
        first, last = math.ceil(self.low / step - ROUNDING), math.floor(self.high / step + ROUNDING)
        return [number * step for number in range(first, last + 1)]

    def text(self, value: float) -> str:
        """Label of a tick."""
        return time_text(value) if self.is_time else tick_text(value)


def time_step(least: float) -> float:
    """Return the smallest usual length of time >= `least` seconds."""
    return next((step for step in TIME_STEPS_S if step >= least), DAY_S * round_step(max(least / DAY_S, 1.0)))


def round_step(least: float) -> float:
    """Return the smallest 1, 2 or 5 x 10^n >= `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - ROUNDING))


def _decades(low: float, high: float) -> list[float]:
    """Return powers of ten within a range.

    With 2, 3 and 5 times each if there are few.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5)):
        marks = [digit * 10.0**power for power in powers for digit in digits]
        inside = [mark for mark in marks if low * (1 - ROUNDING) <= mark <= high * (1 + ROUNDING)]
        if len(inside) >= 3:
            return inside
    return [low, *inside, high] if len(inside) < 2 else inside


def is_drawable(value: float) -> bool:
    """Whether a picture can show `value`.

    Differences and ratios of such values are finite.
    """
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def range_of(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """Return the range of the values, with a margin.

    From 0 with `zero`. `(0, 1)` without a drawable value.
    """
    found = [value for value in values if is_drawable(value)]
    if not found:
        return 0.0, 1.0
    low, high = (0.0, max(*found, 0.0)) if zero else (min(found), max(found))
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return (low, high + margin) if zero else (low - margin, high + margin)


def tick_text(value: float) -> str:
    """Format a tick label: `0.25`, `1.5k`, `1e-5`."""
    if abs(value) >= 10_000:
        return f"{'-' if value < 0 else ''}{_short(count_text(abs(value)))}"
    text = f"{value:.4g}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def _short(text: str) -> str:
    """Return `12.0k` as `12k`."""
    number, unit = text[:-1], text[-1]
    return f"{float(number):g}{unit}" if unit.isalpha() else text
