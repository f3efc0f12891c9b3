"""Curves over steps or time, with numbered marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from forebay.report.axes import BOTTOM, FONT, LEFT, RIGHT, TOP, WIDTH, PlotAxis, is_drawable, range_of, tick_text
from forebay.report.elements import element, joined
from forebay.report.picture import QUIET, PlotArea, dots, label
from forebay.runtime.formatting import metric_text

HEIGHT = 240
MAX_POINTS = 450
"""Points that a curve is drawn with: about one per pixel. A page holds each curve four times."""
MARK_APART = 15.0
DOTS_UP_TO = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A named series of points.

    `series` chooses the color. `faint` is for noise behind another curve, without a name.
    """

    label: str
    points: Sequence[tuple[float, float]]
    series: int = 0
    kind: Literal["line", "faint", "steps"] = "line"

    @property
    def finite(self) -> list[tuple[float, float]]:
        """Return at most about `MAX_POINTS` points that a picture can show.

        The last one is among them.
        """
        found = [(x, y) for x, y in self.points if math.isfinite(x) and is_drawable(y)]
        every = -(-len(found) // MAX_POINTS) or 1
        kept = found[::every]
        return kept if not found or kept[-1] == found[-1] else [*kept, found[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line at `x`.

    `label` is above it, `title` where it is pointed at.
    """

    x: float
    label: str = ""
    title: str = ""
    kind: Literal["plain", "good", "warn", "bad"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Content of a picture of curves.

    `y_range` None fits the curves. `zero` begins the values at 0. `is_log` makes both axes logarithmic, and `log_y` the
    one of values, all > 0. `is_time`: `x` is in seconds. `class_` is one of the page's style.
    """

    title: str
    x_label: str
    curves: Sequence[Curve]
    marks: Sequence[Mark] = ()
    y_range: tuple[float, float] | None = None
    zero: bool = False
    format_y: Callable[[float], str] = tick_text
    whole_x: bool = False
    whole_y: bool = False
    is_log: bool = False
    log_y: bool = False
    is_time: bool = False
    width: int = WIDTH
    height: int = HEIGHT
    class_: str | None = None

    @property
    def is_positive(self) -> bool:
        """Whether there are values, and all are > 0."""
        values = [y for curve in self.curves for _, y in curve.finite]
        return bool(values) and min(values) > 0


def curves(plot: Plot) -> Markup:
    """Draw `plot` as a figure.

    With a key if it has several named curves.
    """
    drawn = [(curve, curve.finite) for curve in plot.curves]
    area = PlotArea(
        _x_axis(plot, [x for _, points in drawn for x, _ in points]),
        _y_axis(plot, [y for _, points in drawn for _, y in points]),
    )
    grid = area.grid(plot.x_label, plot.format_y, whole_x=plot.whole_x, whole_y=plot.whole_y)
    lines = [_line(curve, points, area) for curve, points in drawn if points]
    picture = _svg(plot, [*grid, *_marks(plot.marks, area), *lines])
    return element("figure", element("figcaption", plot.title), _key(plot.curves), picture, class_=plot.class_)


def _x_axis(plot: Plot, values: Sequence[float]) -> PlotAxis:
    known = [*values, *(mark.x for mark in plot.marks)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    return PlotAxis(low, high if high > low else low + 1.0, LEFT, plot.width - RIGHT, plot.is_log, plot.is_time)


def _y_axis(plot: Plot, values: Sequence[float]) -> PlotAxis:
    bottom = plot.height - BOTTOM
    if plot.is_log or plot.log_y:
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        margin = 1.2 if plot.is_log else max((high / low) ** 0.05, 1.001)
        return PlotAxis(low / margin, high * margin, bottom, TOP, is_log=True)
    return PlotAxis(*(plot.y_range or range_of(values, zero=plot.zero)), bottom, TOP)


def _svg(plot: Plot, content: Sequence[str]) -> Markup:
    named = [_said(curve) for curve in plot.curves if curve.kind != "faint"]
    told = f"{plot.title}, over {plot.x_label}. {' '.join(named) or 'No values.'}"
    box = f"0 0 {plot.width} {plot.height}"
    return element("svg", element("title", told), *content, viewBox=box, role="img", font_size=FONT)


def _said(curve: Curve) -> str:
    values = [y for _, y in curve.points if math.isfinite(y)]
    if not values:
        return f"{curve.label}: no value."
    return f"{curve.label}: from {metric_text(values[0])} to {metric_text(values[-1])}, {len(values)} points."


def _marks(marks: Sequence[Mark], area: PlotArea) -> list[Markup]:
    parts, right = [], -math.inf
    colors = {"plain": QUIET, "good": "var(--good)", "warn": "var(--warn)", "bad": "var(--bad)"}
    for mark in sorted(marks, key=lambda mark: mark.x):
        x, color = area.across(mark.x), colors[mark.kind]
        named = mark.label and x - right >= MARK_APART
        above = label(mark.label, x, TOP - 4, color=color) if named else ""
        right = x if named else right
        told = element("title", mark.title) if mark.title else ""
        parts.append(element("g", told, area.vertical(mark.x, color), above))
    return parts


def _line(curve: Curve, points: Sequence[tuple[float, float]], area: PlotArea) -> Markup:
    color = f"var(--series-{curve.series % 5})"
    line = element(
        "path",
        element("title", curve.label),
        d=area.path(points, steps=curve.kind == "steps"),
        fill="none",
        stroke=color,
        stroke_width=1 if curve.kind == "faint" else 2,
        opacity=0.3 if curve.kind == "faint" else None,
        stroke_linejoin="round",
    )
    if curve.kind != "line" or len(points) > DOTS_UP_TO:
        return element("g", line)
    titles = [f"{curve.label} {metric_text(y)}" for _, y in points]
    return element("g", line, dots([(area.across(x), area.up(y)) for x, y in points], color, titles))


def _key(found: Sequence[Curve]) -> Markup:
    named = [curve for curve in found if curve.kind != "faint"]
    return key({curve.label: f"var(--series-{curve.series % 5})" for curve in named}) if len(named) > 1 else joined(())


def key(colors: dict[str, str]) -> Markup:
    """Draw names with the squares of their colors."""
    names = [element("span", element("i", style=f"background: {color}"), name) for name, color in colors.items()]
    return element("div", *names, class_="key")
