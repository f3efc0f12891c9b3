"""Curves over steps or time, with numbered marks, as a picture of a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from forebay.report.axes import BOTTOM, FONT, LEFT, RIGHT, TOP, WIDTH, PlotAxis, range_of, tick_text
from forebay.report.elements import element, joined
from forebay.runtime.formatting import metric_text

HEIGHT = 240
MAX_POINTS = 700
"""Points that a curve is drawn with. More than one per pixel shows nothing more."""
MARK_APART = 15.0
DOTS_UP_TO = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points under a name. `series` chooses the color. `faint` is for noise behind another curve, without a name."""

    label: str
    points: Sequence[tuple[float, float]]
    series: int = 0
    kind: Literal["line", "faint", "steps"] = "line"

    @property
    def finite(self) -> list[tuple[float, float]]:
        """Points that can be drawn, at most about `MAX_POINTS`, the last one among them."""
        found = [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]
        every = -(-len(found) // MAX_POINTS) or 1
        kept = found[::every]
        return kept if not found or kept[-1] == found[-1] else [*kept, found[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Vertical line at `x`, with `label` above it and `title` where it is pointed at."""

    x: float
    label: str = ""
    title: str = ""
    kind: Literal["plain", "good", "warn", "bad"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Content of a picture of curves. `y_range` None fits the curves. `zero` begins the values at 0."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    marks: Sequence[Mark] = ()
    y_range: tuple[float, float] | None = None
    zero: bool = False
    format_y: Callable[[float], str] = tick_text
    whole_x: bool = False
    whole_y: bool = False


def curves(plot: Plot) -> Markup:
    """Picture of `plot`, with a key if it has several named curves."""
    drawn = [(curve, curve.finite) for curve in plot.curves]
    across = _x_axis(plot, [x for _, points in drawn for x, _ in points])
    values = plot.y_range or range_of((y for _, points in drawn for _, y in points), zero=plot.zero)
    up = PlotAxis(*values, HEIGHT - BOTTOM, TOP)
    lines = [_line(curve, points, across, up) for curve, points in drawn if points]
    picture = _svg(plot, [*_grid(plot, across, up), *_marks(plot.marks, across), *lines])
    return element("figure", element("figcaption", plot.title), _key(plot.curves), picture)


def _x_axis(plot: Plot, places: Sequence[float]) -> PlotAxis:
    known = [*places, *(mark.x for mark in plot.marks)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    return PlotAxis(low, high if high > low else low + 1.0, LEFT, WIDTH - RIGHT)


def _svg(plot: Plot, content: Sequence[str]) -> Markup:
    named = [_said(curve) for curve in plot.curves if curve.kind != "faint"]
    told = f"{plot.title}, over {plot.x_label}. {' '.join(named) or 'No values.'}"
    box = f"0 0 {WIDTH} {HEIGHT}"
    return element("svg", element("title", told), *content, viewBox=box, role="img", font_size=FONT)


def _said(curve: Curve) -> str:
    values = [y for _, y in curve.points if math.isfinite(y)]
    if not values:
        return f"{curve.label}: no value."
    return f"{curve.label}: from {metric_text(values[0])} to {metric_text(values[-1])}, {len(values)} points."


def _grid(plot: Plot, across: PlotAxis, up: PlotAxis) -> list[Markup]:
    parts = []
    for value in up.ticks(5):
        if plot.whole_y and value != round(value):
            continue
        y = up(value)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke="var(--faint)"))
        parts.append(_label(plot.format_y(value), LEFT - 7, y + 4.5, "end"))
    below = HEIGHT - BOTTOM + 18
    ticks = [value for value in across.ticks(6) if value == round(value) or not plot.whole_x]
    parts += [_label(tick_text(value), across(value), below, "middle") for value in ticks]
    parts.append(_label(plot.x_label, WIDTH - RIGHT, HEIGHT - 4, "end"))
    return parts


def _label(text: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor, fill="var(--quiet)")


def _marks(marks: Sequence[Mark], across: PlotAxis) -> list[Markup]:
    parts, right = [], -math.inf
    colors = {"plain": "var(--quiet)", "good": "var(--good)", "warn": "var(--warn)", "bad": "var(--bad)"}
    for mark in sorted(marks, key=lambda mark: mark.x):
        x, color = across(mark.x), colors[mark.kind]
        line = element("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, stroke=color, stroke_dasharray="3 3")
        named = mark.label and x - right >= MARK_APART
        label = element("text", mark.label, x=x, y=TOP - 4, text_anchor="middle", fill=color) if named else ""
        right = x if named else right
        parts.append(element("g", element("title", mark.title) if mark.title else "", line, label))
    return parts


def _line(curve: Curve, points: Sequence[tuple[float, float]], across: PlotAxis, up: PlotAxis) -> Markup:
    places = [(across(x), up(y)) for x, y in points]
    color = f"var(--series-{curve.series % 5})"
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}" if curve.kind == "steps" else f"L{x:.1f} {y:.1f}"
    line = element(
        "path",
        element("title", curve.label),
        d=path,
        fill="none",
        stroke=color,
        stroke_width=1 if curve.kind == "faint" else 2,
        opacity=0.3 if curve.kind == "faint" else None,
        stroke_linejoin="round",
    )
    dots = ""
    if curve.kind == "line" and len(places) <= DOTS_UP_TO:
        dots = joined(
            element("circle", element("title", f"{curve.label} {metric_text(y)}"), cx=cx, cy=cy, r=3, fill=color)
            for (cx, cy), (_, y) in zip(places, points, strict=True)
        )
    return element("g", line, dots)


def _key(found: Sequence[Curve]) -> Markup:
    named = [curve for curve in found if curve.kind != "faint"]
    return key({curve.label: f"var(--series-{curve.series % 5})" for curve in named}) if len(named) > 1 else joined(())


def key(colors: dict[str, str]) -> Markup:
    """Names with the squares of their colors."""
    names = [element("span", element("i", style=f"background: {color}"), name) for name, color in colors.items()]
    return element("div", *names, class_="key")
