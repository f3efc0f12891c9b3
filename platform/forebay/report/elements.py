"""Elements of HTML and SVG.

Text is escaped unless it was made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup, escape

Attribute = str | int | float | None


def element(tag: str, *content: str, **attributes: Attribute) -> Markup:
    """Return an element with its content.

    An attribute of None is left out, `class_` is `class`, `data_key` is `data-key`.

    >>> str(element("td", "a < b", class_="wide"))
    '<td class="wide">a &lt; b</td>'
    """
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{shown}>{joined(content)}</{tag}>")  # noqa: S704 - every part of it is escaped


def joined(content: Iterable[str]) -> Markup:
    """Elements and texts one after the other."""
    return Markup("").join(content)


def section(title: str, *content: str, class_: str | None = None) -> Markup:
    """Part of a page under a title."""
    return element("section", element("h2", title), *content, class_=class_)


def facts(pairs: Mapping[str, object], *, class_: str | None = None) -> Markup:
    """Names and values, one pair per line."""
    lines = [joined((element("dt", name), element("dd", shown(value)))) for name, value in pairs.items()]
    return element("dl", *lines, class_=class_)


def shown(value: object) -> str:
    """Text of a value. Elements stay elements."""
    return value if isinstance(value, str) else str(value)


def row(cells: Iterable[str], **attributes: Attribute) -> Markup:
    """Return a row of a table.

    A cell that is a text becomes a `td`.
    """
    made = (each if isinstance(each, Markup) else element("td", each) for each in cells)
    return element("tr", *made, **attributes)


def table(head: Sequence[str], rows: Iterable[Markup], *, class_: str | None = None, label: str = "table") -> Markup:
    """Return a table of `rows` from `row`.

    It scrolls where it is wider than the screen.
    """
    made = element(
        "table",
        element("thead", element("tr", *(element("th", each, scope="col") for each in head))),
        element("tbody", *rows),
        class_=class_,
    )
    return wide(made, label)


def wide(content: str, label: str) -> Markup:
    """Make content scroll where it is wider than the screen.

    Also by keys.
    """
    return element("div", content, class_="wide", tabindex=0, role="region", aria_label=label)


def _text(value: str | float) -> str:
    """Numbers of pictures need two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
