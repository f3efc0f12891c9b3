"""Values of a row as short texts for a table."""

from __future__ import annotations

from rich.cells import cell_len

_CELL = 24
"""Characters of a value in a table. JSON has all of them."""


def value_text(value: object) -> str:
    r"""One line of at most 24 characters. What steers a terminal is shown as its code.

    >>> value_text(0.1234567891), value_text(None), value_text("a\nb\x1b"), value_text([1 / 3, 2])
    ('0.123457', 'null', 'a b\\x1b', '[0.333333, 2]')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str | bytes | list):
        # A cell may hold a picture or a book.
        value = value[: 10 * _CELL]
    if isinstance(value, list):
        return cut_text(f"[{', '.join(map(value_text, value))}]")
    return cut_text("null" if value is None else str(value))


def cut_text(text: str) -> str:
    """`text` on one line, cut to 24 characters."""
    text = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in " ".join(text.split()))
    if cell_len(text) <= _CELL:
        return text
    while cell_len(text) >= _CELL:
        text = text[:-1]
    return f"{text}…"
