"""Parallel coordinates of a sweep's configs, colored by the best value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forebay.report.style import INK
from forebay.sweep.record.record import Record
from forebay.sweep.report.colors import Colors
from forebay.sweep.report.plots import HEIGHT, WIDTH
from forebay.sweep.report.text import word

RANGES = ("Float(", "Integer(")
"""Prefixes of domain texts in the record that fix the scale of numbers."""


def configs_figure(record: Record) -> Figure:
    """Plot every trial as a line through its config to its best value. Dashed without a value."""
    trials = record.ranked
    names = record.parameters
    drawn = [
        axis_of(name, [trial.config_at_best.get(name) for trial in trials], _is_log(record, name)) for name in names
    ]
    values = [point.value if (point := trial.best(record.mode)) else None for trial in trials]
    drawn.append(axis_of(f"best {record.metric}", values))
    figure = Figure(figsize=(min(max(WIDTH, 1.5 * len(drawn)), 24), HEIGHT), layout="constrained")
    axes, colors = figure.subplots(), Colors(record)
    for number, trial in reversed(list(enumerate(trials))):
        heights = [axis.places[number] for axis in drawn]
        _draw_config(axes, heights, colors.of(trial), is_best=trial == record.best)
    for place, axis in enumerate(drawn):
        _draw_axis(axes, place, axis)
    axes.set_xlim(-0.35, len(drawn) - 1 + 0.45)
    axes.set_ylim(-0.04, 1.04)
    axes.set_xticks(range(len(drawn)), [cut(axis.name) for axis in drawn], color=INK, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure


def _is_log(record: Record, name: str) -> bool | None:
    """Whether the axis is logarithmic. None if the domain does not say, as for a list of choices."""
    if name in record.log_axes:
        return True
    return False if record.space.get(name, "").startswith(RANGES) else None


def _draw_config(axes: Axes, heights: list[float | None], color: str, *, is_best: bool) -> None:
    """Draw a smooth line through `heights`, without the missing ones."""
    parts_x, parts_y = [], []
    bend = np.linspace(0, 1, 24)
    for place, (left, right) in enumerate(pairwise(heights)):
        if left is None or right is None:
            continue
        parts_x.append(place + bend)
        parts_y.append(left + (right - left) * (3 * bend**2 - 2 * bend**3))
    if parts_x:
        axes.plot(
            np.concatenate(parts_x),
            np.concatenate(parts_y),
            color=color,
            linewidth=2.6 if is_best else 1.2,
            linestyle="--" if heights[-1] is None else "-",
            alpha=1.0 if is_best else 0.85,
            zorder=4 if is_best else 3,
        )


def _draw_axis(axes: Axes, place: int, axis: Axis) -> None:
    axes.plot([place, place], [0, 1], color=INK, linewidth=1.0, zorder=5)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    for height, text in axis.ticks:
        axes.plot([place - 0.015, place + 0.015], [height, height], color=INK, linewidth=1.0, zorder=5)
        axes.annotate(
            text,
            (place, height),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
            bbox=box,
            zorder=6,
            parse_math=False,
        )


LOG_FROM = 100.0
"""Ratio from which positive values get a logarithmic axis, if their domain is unknown."""
ROUNDING = 1e-9
"""Tolerance for sums of steps: three times 0.1 is more than 0.3."""
NUM_TICKS = 5
NUM_CHOICES = 6
MAX_LABEL = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Axis of the plot.

    `places` are heights from 0 to 1, None for a missing value. `ticks` are heights with their texts.
    """

    name: str
    places: tuple[float | None, ...]
    ticks: tuple[tuple[float, str], ...]


def axis_of(name: str, values: Sequence[Any], is_log: bool | None = None) -> Axis:
    """Axis for `values`: linear or logarithmic if all are numbers, otherwise one place per value.

    With `is_log` None, the values decide the scale, and a few different numbers get one tick each.
    """
    found = [value for value in values if value is not None]
    if found and all(_is_number(value) for value in found):
        return _of_numbers(name, [None if value is None else float(value) for value in values], is_log)
    return _of_words(name, values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_numbers(name: str, values: Sequence[float | None], is_log: bool | None) -> Axis:
    found = [value for value in values if value is not None]
    low, high = min(found), max(found)
    if low == high:
        places = tuple(None if value is None else 0.5 for value in values)
        return Axis(name=name, places=places, ticks=((0.5, _number(low)),))
    may_be_choices = is_log is None
    is_log = low > 0 and (high / low >= LOG_FROM if is_log is None else is_log)
    scale: Callable[[float], float] = math.log10 if is_log else float
    bottom, top = scale(low), scale(high)
    if bottom == top:
        return axis_of(name, [None if value is None else low for value in values])

    def place(value: float) -> float:
        return (scale(value) - bottom) / (top - bottom)

    kinds = sorted(set(found))
    if may_be_choices and len(kinds) <= NUM_CHOICES and len(kinds) < len(found):
        marks = kinds
    else:
        marks = (
            _decades(low, high)
            if is_log
            else list(MaxNLocator(nbins=NUM_TICKS, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
        )
    ticks = [(place(mark), _number(mark)) for mark in marks if -ROUNDING <= place(mark) <= 1 + ROUNDING]
    return Axis(
        name=name, places=tuple(None if value is None else place(value) for value in values), ticks=tuple(ticks)
    )


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, or 1, 2 and 5 of each if there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5)):
        marks = [digit * 10.0**power for power in powers for digit in digits]
        inside = [mark for mark in marks if low * (1 - ROUNDING) <= mark <= high * (1 + ROUNDING)]
        if len(inside) >= 3:
            return inside
    return [low, *inside, high] if len(inside) < 2 else inside


def _of_words(name: str, values: Sequence[Any]) -> Axis:
    texts = [None if value is None else word(value) for value in values]
    kinds = sorted({text for text in texts if text is not None})
    places = {text: (at + 0.5) / len(kinds) for at, text in enumerate(kinds)}
    ticks = tuple((place, cut(text)) for text, place in places.items())
    return Axis(name=name, places=tuple(None if text is None else places[text] for text in texts), ticks=ticks)


def cut(text: str) -> str:
    """`text`, cut to the available width."""
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _number(value: float) -> str:
    """Short number: `1e-5`, not `1e-05`."""
    digits, mark, power = f"{value:.4g}".partition("e")
    return f"{digits}e{int(power)}" if mark else digits
