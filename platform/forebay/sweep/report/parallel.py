"""Parallel coordinates of a sweep's configs.

Colored by the best value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from forebay.report.axes import ROUNDING, PlotAxis, tick_text
from forebay.report.elements import Attribute, element
from forebay.report.picture import INK, PAPER, Picture, label
from forebay.sweep.record.record import Record
from forebay.sweep.report.colors import Colors
from forebay.sweep.report.text import word

RANGES = ("Float(", "Integer(")
"""Prefixes of domain texts in the record that fix the scale of numbers."""
LOG_FROM = 100.0
"""Ratio from which positive values get a logarithmic axis, if their domain is unknown."""
NUM_TICKS = 5
NUM_CHOICES = 6
MAX_LABEL = 18
SIDE, TOP, BOTTOM, LAST = 80, 44, 22, 80
WIDTH, HEIGHT = 620, 430
APART, WIDEST = 150, 2400
"""Least distance of two axes, and the largest width of the picture."""

HALO: dict[str, Attribute] = {"stroke": PAPER, "stroke_width": 4, "paint_order": "stroke", "stroke_linejoin": "round"}
"""Makes a text readable on top of lines."""


def configs_picture(record: Record) -> Picture:
    """Draw a line for each config, up to its best value.

    Dashed without a value.
    """
    trials, names, best = record.ranked, record.parameters, record.best
    drawn = [
        coordinate(name, [trial.config_at_best.get(name) for trial in trials], _is_log(record, name)) for name in names
    ]
    values = [point.value if (point := trial.best(record.mode)) else None for trial in trials]
    drawn.append(coordinate(f"best {record.metric}", values))
    width, colors = min(max(WIDTH, SIDE + LAST + APART * (len(drawn) - 1)), WIDEST), Colors(record)
    across = PlotAxis(0.0, max(len(drawn) - 1, 1), SIDE, width - LAST)
    lines = []
    for number, trial in reversed(list(enumerate(trials))):
        heights = [None if (value := each.values[number]) is None else each.axis(value) for each in drawn]
        lines.append(_line(trial.id, heights, across, colors.of(trial), is_best=trial is best))
    axes = [part for number, each in enumerate(drawn) for part in _axis(each, across(number))]
    return Picture(title="Configs", width=width, height=HEIGHT, content=(*lines, *axes))


def _is_log(record: Record, name: str) -> bool | None:
    """Return whether the axis is logarithmic.

    None if the domain does not say, as for a list of choices.
    """
    if name in record.log_axes:
        return True
    return False if record.space.get(name, "").startswith(RANGES) else None


def _line(title: str, heights: Sequence[float | None], across: PlotAxis, color: str, *, is_best: bool) -> Markup:
    """Draw a smooth line through `heights`, without the missing ones."""
    path, pen = "", None
    for number, (left, right) in enumerate(pairwise(heights)):
        if left is None or right is None:
            continue
        begin, end = across(number), across(number + 1)
        near, far = (2 * begin + end) / 3, (begin + 2 * end) / 3
        path += "" if pen == number else f"M{begin:.1f} {left:.1f}"
        path += f"C{near:.1f} {left:.1f} {far:.1f} {right:.1f} {end:.1f} {right:.1f}"
        pen = number + 1
    return element(
        "path",
        element("title", title),
        d=path,
        fill="none",
        stroke=color,
        stroke_width=3 if is_best else 1.4,
        stroke_dasharray="6 4" if heights[-1] is None else None,
        opacity=None if is_best else 0.85,
    )


def _axis(drawn: Coordinate, x: float) -> list[Markup]:
    axis = drawn.axis
    parts = [
        label(cut(drawn.name), x, 22, color=INK),
        element("line", x1=x, x2=x, y1=axis.start, y2=axis.end, stroke=INK),
    ]
    for value, text in drawn.ticks:
        y = axis(value)
        parts.append(element("line", x1=x - 3, x2=x + 3, y1=y, y2=y, stroke=INK))
        parts.append(label(text, x + 8, y + 4.5, "start", INK, font_size=12, **HALO))
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A swept parameter as numbers on an axis.

    `values` has one number per trial, None for a missing value. `ticks` are numbers with their labels.
    """

    name: str
    axis: PlotAxis
    values: tuple[float | None, ...]
    ticks: tuple[tuple[float, str], ...]


def coordinate(name: str, values: Sequence[Any], is_log: bool | None = None) -> Coordinate:
    """Return the axis of `values`.

    Linear or logarithmic for numbers, otherwise one position per value.

    With `is_log` None, the values decide the scale, and a few different numbers get one tick each.
    """
    found = [value for value in values if value is not None]
    if found and all(_is_number(value) for value in found):
        return _of_numbers(name, [None if value is None else float(value) for value in values], is_log)
    return _of_words(name, values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_numbers(name: str, values: Sequence[float | None], is_log: bool | None) -> Coordinate:
    found = [value for value in values if value is not None]
    low, high = min(found), max(found)
    if high - low <= ROUNDING * abs(high):
        around = max(abs(low), 1.0)
        axis = _up(low - around, low + around)
        return Coordinate(name=name, axis=axis, values=tuple(values), ticks=((low, tick_text(low)),))
    axis = _up(low, high, is_log=low > 0 and (high / low >= LOG_FROM if is_log is None else is_log))
    kinds = sorted(set(found))
    is_choices = is_log is None and len(kinds) <= NUM_CHOICES and len(kinds) < len(found)
    ticks = kinds if is_choices else axis.ticks(NUM_TICKS)
    return Coordinate(
        name=name, axis=axis, values=tuple(values), ticks=tuple((each, tick_text(each)) for each in ticks)
    )


def _of_words(name: str, values: Sequence[Any]) -> Coordinate:
    texts = [None if value is None else word(value) for value in values]
    kinds = {text: at + 0.5 for at, text in enumerate(sorted({text for text in texts if text is not None}))}
    return Coordinate(
        name=name,
        axis=_up(0.0, max(len(kinds), 1)),
        values=tuple(None if text is None else kinds[text] for text in texts),
        ticks=tuple((at, cut(text)) for text, at in kinds.items()),
    )


def _up(low: float, high: float, *, is_log: bool = False) -> PlotAxis:
    return PlotAxis(low, high, HEIGHT - BOTTOM, TOP, is_log)


def cut(text: str) -> str:
    """Cut `text` to the available width."""
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
