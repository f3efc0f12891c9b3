"""One color per trial, by its best value.

The same in every plot and in the table.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from markupsafe import Markup

from forebay.report.axes import PlotAxis, tick_text
from forebay.report.elements import element
from forebay.report.picture import label, turned
from forebay.sweep.record.record import Record, TrialRecord
from forebay.sweep.report.text import value_text

BEST, NONE = "#d1495b", "#c3cad1"
SHADES = ("#b5e0b6", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#2b3f9c")
"""From pale to dark, at equal distances: the middle of YlGnBu (ColorBrewer). Dark is good."""
FEW = 20
"""Number of values below which outliers are shown too."""
_BAR_WIDTH, _BAR_PARTS = 14, 48


class Colors:
    """Colors of the trials of a sweep."""

    def __init__(self, record: Record) -> None:
        self._record, self._best = record, record.best
        values = [point.value for trial in record.trials.values() if (point := trial.best(record.mode))]
        numbers = np.array([value for value in values if value is not None])
        self._is_one = len(set(numbers.tolist())) < 2
        low, high = without_outliers(numbers, record.mode) if len(numbers) else (0.0, 1.0)
        pale, dark = (0.0, 1.0) if record.mode == "max" else (1.0, 0.0)
        self._shade = PlotAxis(low, high if high > low else low + 1e-9, pale, dark)

    def of(self, trial: TrialRecord) -> str:
        """Return the color of a trial.

        Red for the best, grey without a value.
        """
        if self._best is not None and trial.id == self._best.id:
            return BEST
        point = trial.best(self._record.mode)
        return NONE if point is None or point.value is None else _mixed(self._shade(point.value))

    def explain(self, x: float, top: float, bottom: float) -> list[Markup]:
        """Draw the color scale, from `x` on.

        Empty for fewer than two values.
        """
        if self._best is None or self._is_one:
            return []
        up = PlotAxis(self._shade.low, self._shade.high, bottom, top)
        edges = np.linspace(up.low, up.high, _BAR_PARTS + 1)
        high = (bottom - top) / _BAR_PARTS
        # One unit higher than its part: no gaps after rounding.
        parts = [
            element("rect", x=x, y=up(edge) - 0.5, width=_BAR_WIDTH, height=high + 1, fill=_mixed(self._shade(edge)))
            for edge in edges[1:].tolist()
        ]
        ticks = [label(tick_text(value), x + _BAR_WIDTH + 5, up(value) + 4.5, "start") for value in up.ticks(5)]
        return [*parts, *ticks, turned(f"best {self._record.metric} of a trial", x + 80, (top + bottom) / 2)]

    def best_text(self) -> str:
        """Name the best trial and its value.

        Empty without one.
        """
        if self._best is None:
            return ""
        return f"best: {self._best.id}, {self._record.metric} {value_text(self._record.best_value)}"


def _mixed(share: float) -> str:
    """Return the shade at `share` from pale (0) to dark (1)."""
    at = share * (len(SHADES) - 1)
    low = min(int(at), len(SHADES) - 2)
    left, right = (bytes.fromhex(SHADES[number][1:]) for number in (low, low + 1))
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(left, right, strict=True))
    return f"#{bytes(mixed).hex()}"


def without_outliers(values: np.ndarray, mode: Literal["min", "max"]) -> tuple[float, float]:
    """Return the bounds of `values`, without those far worse than most."""
    low, high = float(values.min()), float(values.max())
    if len(values) < FEW:
        return low, high
    first, third = np.quantile(values, (0.25, 0.75))
    reach = 8 * (third - first)
    if reach == 0:
        return low, high
    return (max(low, first - reach), high) if mode == "max" else (low, min(high, third + reach))
