"""One color per trial, by its best value: the same in every plot and in the table."""

from __future__ import annotations

from typing import Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure

from forebay.report.style import INK
from forebay.sweep.record.record import Record, TrialRecord
from forebay.sweep.report.text import value_text

BEST, NONE = "#d1495b", "#c3cad1"
FEW = 20
"""Number of values below which outliers are shown too."""


class Colors:
    """One color per trial, by its best value: the same in every plot."""

    def __init__(self, record: Record) -> None:
        self._record, self._best = record, record.best
        values = [point.value for trial in record.trials.values() if (point := trial.best(record.mode))]
        numbers = np.array([value for value in values if value is not None])
        self._map = _blues(record.mode)
        self._is_one = len(set(numbers.tolist())) < 2
        low, high = without_outliers(numbers, record.mode) if len(numbers) else (0.0, 1.0)
        self._norm = Normalize(low, high if high > low else low + 1e-9, clip=True)

    def of(self, trial: TrialRecord) -> str:
        """Color of a trial: red for the best, grey without a value."""
        if self._best is not None and trial.id == self._best.id:
            return BEST
        point = trial.best(self._record.mode)
        return NONE if point is None or point.value is None else to_hex(self._map(float(self._norm(point.value))))

    def explain(self, figure: Figure, axes: Axes) -> None:
        """Add a color scale and name the best trial."""
        if self._best is None:
            return
        axes.set_title(
            f"best: {self._best.id}, {self._record.metric} {value_text(self._record.best_value)}",
            color=BEST,
            loc="left",
            fontsize=10,
            parse_math=False,
        )
        if self._is_one:
            return
        bar = figure.colorbar(ScalarMappable(self._norm, self._map), ax=axes, pad=0.015, aspect=28)
        bar.set_label(f"best {self._record.metric} of a trial", color=INK, parse_math=False)
        bar.ax.tick_params(colors=INK, labelsize=8)
        bar.outline.set_visible(False)


def _blues(mode: Literal["min", "max"]) -> Colormap:
    """Color map from pale to dark. Dark is good."""
    shades = colormaps["YlGnBu"](np.linspace(0.22, 0.95, 256))
    return LinearSegmentedColormap.from_list("values", shades if mode == "max" else shades[::-1])


def without_outliers(values: np.ndarray, mode: Literal["min", "max"]) -> tuple[float, float]:
    """Bounds of `values`, without those that are far worse than most."""
    low, high = float(values.min()), float(values.max())
    if len(values) < FEW:
        return low, high
    first, third = np.quantile(values, (0.25, 0.75))
    reach = 8 * (third - first)
    if reach == 0:
        return low, high
    return (max(low, first - reach), high) if mode == "max" else (low, min(high, third + reach))
