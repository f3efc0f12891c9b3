"""Axes of a picture: ranges, ticks at round values, and places in the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from forebay.runtime.formatting import count_text

WIDTH = 560
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 16, 40
"""Margins, in the unit of the picture. A picture is shown at about one pixel per unit, or less on a narrow screen."""
FONT = 13


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """Values from `low` to `high`, at places from `start` to `end` in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """At most `count` + 1 round values within the axis.

        >>> PlotAxis(0.0, 9.7, 0, 100).ticks(5)
        [0.0, 2.0, 4.0, 6.0, 8.0]
        """
        step = round_step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def round_step(least: float) -> float:
    """Smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def range_of(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """Smallest and largest finite value with a margin, or from 0 with `zero`. `(0, 1)` without any."""
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return 0.0, 1.0
    low, high = (0.0 if zero else min(found)), max(found)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return (low, high + margin) if zero else (low - margin, high + margin)


def tick_text(value: float) -> str:
    """Short text of a tick: `0.25`, `1.5k`, `1e-5`."""
    if abs(value) >= 10_000:
        return f"{'-' if value < 0 else ''}{_short(count_text(abs(value)))}"
    text = f"{value:.4g}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def _short(text: str) -> str:
    """`12.0k` as `12k`."""
    number, unit = text[:-1], text[-1]
    return f"{float(number):g}{unit}" if unit.isalpha() else text
