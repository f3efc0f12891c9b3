"""Figures of matplotlib as pictures of a page."""

from __future__ import annotations

import io
import re

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from forebay.report.elements import element, wide
from forebay.report.style import FAINT, INK, PAPER

POINTS_PER_INCH = 80
"""Smallest scale of a figure: on a narrow screen it scrolls."""
_NEEDLESS = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style.*?</style>", re.DOTALL),  # would hold for the whole page
    re.compile(r'(?<=<g) id="[^"]*"'),
    re.compile(r'(width|height)="[\d.]+pt" '),
)
_BY_PAGE = {INK: "var(--ink)", FAINT: "var(--faint)", PAPER: "var(--paper)", "#000000": "var(--ink)"}


def figure_of(figure: Figure, title: str) -> Markup:
    """The figure as SVG, with text as text, in the page's own colors of text, lines and ground."""
    drawn = io.StringIO()
    # Ids of parts must differ between the figures of a page, and not between two drawings of one.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    _, _, body = drawn.getvalue().partition("<svg ")
    for needless in _NEEDLESS:
        body = needless.sub("", body)
    for color, variable in _BY_PAGE.items():
        body = body.replace(f": {color}", f": {variable}")
    least = round(figure.get_figwidth() * POINTS_PER_INCH)
    named = element("title", title)
    head, _, rest = body.partition(">")
    svg = Markup(f'<svg role="img" style="min-width: {least}px" {head}>{named}{rest}')  # noqa: S704 - matplotlib escapes
    return wide(svg, title)
