"""Foreign text reaches a terminal as text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from forebay.report.console import SafeConsole
from forebay.report.fitted_table import FittedTable
from forebay.runtime.formatting import printable

OWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colors, and the cursor of live displays."""
HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b2J\b\b\r\x00 \u202etxt.exe\u2066 \ud800"


def table(text: str) -> Table:
    made = Table(title=escape(text))
    made.add_column(Text(text))
    made.add_row(Text(text), style="red")
    return made


def progress(text: str) -> Progress:
    shown = Progress(TextColumn("{task.description}", markup=False), BarColumn())
    shown.add_task(text)
    return shown


SHOWN: dict[str, Callable[[str], RenderableType]] = {
    "str": escape,
    "text": lambda text: Text(text, style="bold"),
    "table": table,
    "fitted": lambda text: FittedTable([text], [[text]], title=text, caption=text),
    "panel": lambda text: Panel(Group(Text(text), Text(text))),
    "progress": progress,
}


def output(shown: RenderableType, *, is_terminal: bool) -> str:
    screen = io.StringIO()
    SafeConsole(file=screen, force_terminal=is_terminal, width=200).print(shown)
    return screen.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("kind", SHOWN)
def test_nothing_steers_the_terminal(kind: str, is_terminal: bool) -> None:
    found = output(SHOWN[kind](HOSTILE), is_terminal=is_terminal)
    rest = OWN.sub("", found) if is_terminal else found
    assert all(each.isprintable() or each == "\n" for each in rest), rest
    assert "\\x1b[2J" in rest
    assert OWN.findall(found).count("\x1b[2J") == 0


@given(st.text())
def test_printable_text_stays_and_nothing_else_passes(text: str) -> None:
    shown = printable(text)
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    assert printable(shown) == shown
    if all(each.isprintable() or each in "\n\t" for each in text):
        assert shown == text
    shown.encode()  # no lone surrogate is left


@pytest.mark.parametrize(
    ("variables", "is_terminal"),
    [({}, False), ({"FORCE_COLOR": "1"}, False), ({"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}, True)],
)
def test_a_log_has_no_moving_bar_though_colors_are_forced(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_terminal: bool
) -> None:
    """A notebook and many CI services set FORCE_COLOR for all processes."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert SafeConsole(file=io.StringIO()).is_terminal == is_terminal
    assert SafeConsole(file=io.StringIO(), force_terminal=True).is_terminal
