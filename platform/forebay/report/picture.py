"""Pictures as SVG, and the parts that they share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from forebay.errors import InvalidOption
from forebay.report.axes import FONT, PlotAxis, tick_text
from forebay.report.elements import Attribute, element, joined, wide
from forebay.report.page import write_page
from forebay.report.style import LIGHT

INK, QUIET, FAINT, PAPER = "var(--ink)", "var(--quiet)", "var(--faint)", "var(--paper)"
"""Colors of text, of labels, of grid lines and of the ground, as the page sets them, light or dark."""
_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")
_TICK_UP, _TICK_ACROSS = 36, 82
"""About the least distance of two ticks."""
_SHRINKS_TO, _GROWS_TO = 0.56, 1.25
"""Smallest and largest scale of a picture in a page. On a screen too narrow for the smallest, it scrolls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing of `width` x `height` units.

    A notebook shows it.

    `content` may use the colors of a page (`var(--ink)`).
    """

    title: str
    width: int
    height: int
    content: tuple[Markup, ...]

    def in_page(self) -> Markup:
        """Return the picture for a page, in its colors."""
        least, most = round(_SHRINKS_TO * self.width), round(_GROWS_TO * self.width)
        style = f"min-width: {least}px; max-width: {most}px; margin: 0 auto"
        return wide(self._svg(style=style), self.title)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the picture as an SVG file.

        Local, or at a URI. Returns its path.

        Raises:
            InvalidOption: `path` does not end in `.svg`.
            WriteFailed: Storage refuses.
        """
        uri = str(path)
        if not uri.partition("?")[0].endswith(".svg"):
            raise InvalidOption(f"path={uri!r}: a picture is saved as SVG. Give a path that ends in .svg.", path=uri)
        return write_page(uri, self._repr_svg_(), f"The picture {self.title!r}")

    def _repr_svg_(self) -> str:
        """Return an SVG document.

        In light colors on a white ground.
        """
        ground = element("rect", width=self.width, height=self.height, fill=PAPER)
        size: dict[str, Attribute] = {"width": self.width, "height": self.height}
        drawn = self._svg(ground, xmlns="http://www.w3.org/2000/svg", font_family="system-ui, sans-serif", **size)
        return _VARIABLE.sub(lambda found: LIGHT[found[1]], drawn)

    def _svg(self, *ground: Markup, **attributes: Attribute) -> Markup:
        content = (element("title", self.title), *ground, *self.content)
        box = f"0 0 {self.width} {self.height}"
        return element("svg", *content, viewBox=box, role="img", font_size=FONT, **attributes)


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The rectangle between two axes."""

    across: PlotAxis
    up: PlotAxis

    def grid(
        self,
        x_label: str,
        format_y: Callable[[float], str] = tick_text,
        *,
        whole_x: bool = False,
        whole_y: bool = False,
    ) -> list[Markup]:
        """Draw grid lines and the labels of both axes.

        `whole_` leaves out fractions.
        """
        left, right, bottom = self.across.start, self.across.end, self.up.start
        parts = []
        num_up, num_across = round((bottom - self.up.end) / _TICK_UP), round((right - left) / _TICK_ACROSS)
        for value in _whole(self.up.ticks(num_up), whole_y):
            y = self.up(value)
            parts.append(element("line", x1=left, x2=right, y1=y, y2=y, stroke=FAINT))
            parts.append(label(format_y(value), left - 7, y + 4.5, "end"))
        parts += [
            label(self.across.text(value), self.across(value), bottom + 18)
            for value in _whole(self.across.ticks(num_across), whole_x)
        ]
        parts.append(label(x_label, right, bottom + 36, "end"))
        return parts

    def path(self, points: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
        """Return the `d` of a path through `points`.

        With `steps` as a staircase.
        """
        # Rounded before they are subtracted, so that errors do not add up; half as long as absolute coordinates.
        (x, y), *others = [(round(self.across(x), 1), round(self.up(y), 1)) for x, y in points]
        parts = [f"M{x:.1f} {y:.1f}"]
        for next_x, next_y in others:
            right, down = f"{next_x - x:.4g}", f"{next_y - y:.4g}"
            parts.append(f"h{right}v{down}" if steps else f"l{right} {down}")
            x, y = next_x, next_y
        return "".join(parts)

    def vertical(self, x: float, color: str, dash: str = "3 3") -> Markup:
        """Draw a dashed line at the value `x`."""
        at, ends = self.across(x), {"y1": self.up.end, "y2": self.up.start}
        return element("line", x1=at, x2=at, **ends, stroke=color, stroke_dasharray=dash)


def label(text: str, x: float, y: float, anchor: str = "middle", color: str = QUIET, **attributes: Attribute) -> Markup:
    """Draw a text. `anchor` is start, middle or end."""
    return element("text", text, x=x, y=y, text_anchor=anchor, fill=color, **attributes)


def turned(text: str, x: float, y: float) -> Markup:
    """Draw a text from bottom to top, centered at (x, y)."""
    return label(text, x, y, transform=f"rotate(-90 {x:g} {y:g})")


def dots(points: Sequence[tuple[float, float]], color: str, titles: Sequence[str], radius: float = 3.0) -> Markup:
    """Draw a dot at each coordinate, with a tooltip."""
    return joined(
        element("circle", element("title", title), cx=x, cy=y, r=radius, fill=color)
        for (x, y), title in zip(points, titles, strict=True)
    )


def _whole(values: Sequence[float], wanted: bool) -> list[float]:
    return [value for value in values if not wanted or value == round(value)]
