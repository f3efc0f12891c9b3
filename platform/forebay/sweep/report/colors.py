"""One color per trial, by its best value.

The same in every plot and in the table.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from markupsafe import Markup

from forebay.report.axes import PlotAxis, tick_text
from forebay.report.elements import element
from forebay.report.picture import QUIET, label, turned
from forebay.report.style import NUM_SHADES
from forebay.sweep.record.record import Record, TrialRecord
from forebay.sweep.report.text import value_text

BEST, NONE = "var(--series-1)", QUIET
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
        worst, best = (0.0, 1.0) if record.mode == "max" else (1.0, 0.0)
        self._shade = PlotAxis(low, high if high > low else low + max(abs(low), 1.0), worst, best)

    def of(self, trial: TrialRecord) -> str:
        """Return the color of a trial.

        Red for the best, grey without a value.
        """
        if self._best is not None and trial.id == self._best.id:
            return BEST
        point = trial.best(self._record.mode)
        return NONE if point is None or point.value is None else _shade(self._shade(point.value))

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
            element("rect", x=x, y=up(edge) - 0.5, width=_BAR_WIDTH, height=high + 1, fill=_shade(self._shade(edge)))
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


def _shade(share: float) -> str:
    """Return the shade at `share` of the scale, 0 to 1.

    It is a color of the page, light or dark.
    """
    return f"var(--shade-{round(min(max(share, 0.0), 1.0) * (NUM_SHADES - 1))})"


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
