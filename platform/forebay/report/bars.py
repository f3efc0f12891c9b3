"""Stacked horizontal bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from forebay.report.axes import FONT, RIGHT, WIDTH, PlotAxis, tick_text
from forebay.report.curves import key
from forebay.report.elements import element
from forebay.report.picture import FAINT, INK, label
from forebay.runtime.formatting import seconds_text

MAX_BARS = 24
"""Bars of a picture. Of more, neighbours are summed up by `summed`."""
ROW, HEIGHT = 24, 16
FOOT = 38
LETTER = 7.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Seconds of each part, under a label.

    `end` is a text behind the bar.
    """

    label: str
    parts: Sequence[float]
    end: str = ""


def bars(title: str, rows: Sequence[Bar], parts: Mapping[str, str], unit: str = "seconds") -> Markup:
    """Draw `rows`.

    `parts` is the name and the color of each part.
    """
    left = 14 + LETTER * max((len(row.label) for row in rows), default=0)
    longest = max((sum(row.parts) for row in rows), default=0.0)
    room = RIGHT + LETTER * max((len(row.end) for row in rows), default=0)
    across = PlotAxis(0.0, longest if longest > 0 else 1.0, left, WIDTH - room)
    height = ROW * len(rows) + FOOT
    content = []
    for value in across.ticks(5):
        x = across(value)
        content.append(element("line", x1=x, x2=x, y1=0, y2=ROW * len(rows), stroke=FAINT))
        content.append(label(tick_text(value), x, height - 20))
    content.append(label(unit, WIDTH - 4, height - 4, "end"))
    for number, row in enumerate(rows):
        content.append(_bar(row, ROW * number, left, across, parts))
    told = element("title", f"{title}. {' '.join(_said(row, parts) for row in rows)}")
    picture = element("svg", told, *content, viewBox=f"0 0 {WIDTH} {height}", role="img", font_size=FONT)
    return element("figure", element("figcaption", title), key(dict(parts)), picture)


def _bar(row: Bar, top: float, left: float, across: PlotAxis, parts: Mapping[str, str]) -> Markup:
    pieces, end = [label(row.label, left - 8, top + 16, "end", INK)], 0.0
    for (name, color), seconds in zip(parts.items(), row.parts, strict=True):
        begin, end = end, end + max(seconds, 0.0)
        if end > begin:
            told = element("title", f"{row.label}: {name} {seconds_text(seconds)} s")
            x, wide = across(begin), across(end) - across(begin)
            pieces.append(element("rect", told, x=x, y=top + 4, width=wide, height=HEIGHT, fill=color))
    if row.end:
        pieces.append(label(row.end, across(end) + 7, top + 16, "start"))
    return element("g", *pieces)


def _said(row: Bar, parts: Mapping[str, str]) -> str:
    found = [f"{name} {seconds_text(seconds)} s" for name, seconds in zip(parts, row.parts, strict=True) if seconds]
    return f"{row.label}: {', '.join(found) or 'nothing'}."
