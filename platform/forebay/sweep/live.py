"""The table of a sweep's trials while it is under way: in a terminal, in a notebook, or as lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from forebay.driver.wording import time_text
from forebay.sweep.record import Record, State
from forebay.sweep.wording import best_text, cells, columns, config_text, footing, lively_first, value_text

FIRST_LINE_EVERY_S, LAST_LINE_EVERY_S = 10.0, 60.0
LOG_WIDTH = 160
"""A log has no width of its own; a table folded at 80 columns there helps nobody."""
ROWS_BESIDE = 6
"""Lines of a terminal that are not trials: head, footing, and what the shell wrote."""
COLOURS: dict[State, str] = {
    "running": "green",
    "paused": "yellow",
    "pending": "dim",
    "finished": "blue",
    "stopped": "dim",
    "failed": "red",
}

log = logging.getLogger(__name__)


class Display(Protocol):
    """Somewhere to show a record; `end` shows it for the last time."""

    def show(self, record: Record) -> None: ...

    def end(self, record: Record) -> None: ...


class Live:
    """Called with the record about once a second; shows it wherever this process is watched.

    Output that nobody takes any more (a closed terminal) ends the showing, not the sweep.
    """

    def __init__(self, display: Display) -> None:
        self._display: Display | None = display
        self._record: Record | None = None

    def __call__(self, record: Record) -> None:
        self._record = record
        self._try(lambda display: display.show(record))

    def close(self) -> None:
        """Show the record as it is now, for the last time."""
        record = self._record
        if record is not None:
            self._try(lambda display: display.end(record))

    def _try(self, show: Callable[[Display], None]) -> None:
        if self._display is None:
            return
        try:
            show(self._display)
        except (OSError, ValueError) as error:  # ValueError: what Python says of a file that was closed
            self._display = None
            log.warning("The sweep goes on, but it is shown no longer: %s", error)


@contextmanager
def showing(wanted: bool = True, console: Console | None = None) -> Iterator[Callable[[Record], None]]:
    """What to call with the record of a sweep, about once a second, for the length of the block.

    `console` is where it shows unless this is a notebook: standard error if it is not given.
    """
    if not wanted:
        yield lambda record: None  # noqa: ARG005
        return
    live = Live(_display(console))
    try:
        yield live
    finally:
        live.close()


def _display(console: Console | None) -> Display:
    if console is None and _is_notebook():
        return NotebookTable()
    console = console or Console(stderr=True, highlight=False)
    if console.is_terminal:
        return TerminalTable(console)
    return Lines(Console(file=console.file, width=LOG_WIDTH, highlight=False))


def _is_notebook() -> bool:
    """Whether a notebook shows what this process displays; IPython is there already if so."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


class TerminalTable:
    """A table that is drawn anew in its place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen: Screen | None = None

    def show(self, record: Record) -> None:
        if self._screen is None:
            self._screen = Screen(console=self._console, auto_refresh=False)
            self._screen.start()
        rows = max(self._console.height - ROWS_BESIDE, 1)
        self._screen.update(Group(trial_table(record, rows), Text(footing(record))), refresh=True)

    def end(self, record: Record) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.update(Group(trial_table(record), Text(footing(record))), refresh=True)
            screen.stop()


class NotebookTable:
    """A table in the output of a cell, replaced as a whole."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, record: Record) -> None:
        from IPython.display import HTML, display  # noqa: PLC0415 - an extra: only notebooks have it

        shown = HTML(html_table(record))  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)

    def end(self, record: Record) -> None:
        self.show(record)


class Lines:
    """A line per new best value, per trial that ends, and ever more rarely how the sweep stands; a table at the end."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._began: float | None = None
        self._due = 0.0
        self._ended: set[str] = set()
        self._best: float | None = None

    def show(self, record: Record) -> None:
        now = self._clock()
        if self._began is None:
            self._begin(record, now)
        self._tell_ends(record)
        if record.best_value != self._best:
            self._best = record.best_value
            best = record.best
            self._say(record, f"{best_text(record)}: {config_text(best.config_at_best) if best else '-'}")
            self._put_off(now)
        elif now >= self._due:
            self._say(record, footing(record))
            self._put_off(now)

    def end(self, record: Record) -> None:
        self._tell_ends(record)
        self._console.print(trial_table(record))
        self._say(record, footing(record))

    def _begin(self, record: Record, now: float) -> None:
        """What an earlier start has come to is no news."""
        self._began, self._due = now, now + FIRST_LINE_EVERY_S
        self._ended = {trial.id for trial in record.trials.values() if trial.has_ended}
        self._best = record.best_value
        limit = "" if record.deadline_left_s is None else f", {time_text(record.deadline_left_s)} until the deadline"
        goal = "highest" if record.mode == "max" else "lowest"
        self._say(record, f"sweep {record.name}: for the {goal} {record.metric}{limit}")

    def _put_off(self, now: float) -> None:
        assert self._began is not None
        self._due = now + min(max(FIRST_LINE_EVERY_S, (now - self._began) / 10), LAST_LINE_EVERY_S)

    def _tell_ends(self, record: Record) -> None:
        for trial in record.trials.values():
            if trial.has_ended and trial.id not in self._ended:
                self._ended.add(trial.id)
                last = trial.last
                came_to = f", {record.metric} {value_text(last.value)}" if last else ""
                why = f": {trial.error}" if trial.error else ""
                self._say(record, f"{trial.id} {trial.state} after {_epochs(trial.epochs)}{came_to}{why}")

    def _say(self, record: Record, text: str) -> None:
        self._console.print(f"{time_text(record.elapsed_s):>7}  {text}", markup=False, soft_wrap=True)


def trial_table(record: Record, most: int | None = None) -> Table:
    """A line per trial, at most `most`; the best one in bold."""
    best = record.best
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns(record):
        is_text = name in ("trial", "state", "config")
        # Where there is no room for all, it is the config that is cut: rich narrows what may be wrapped first.
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "config", overflow="ellipsis")
    trials = lively_first(record) if most is not None else record.ranked
    for trial in trials[:most]:
        texts = [Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells(record, trial)]
        texts[1].stylize(COLOURS[trial.state])
        table.add_row(*texts, style="bold" if best is not None and trial.id == best.id else None)
    if most is not None and len(trials) > most:
        table.add_row(Text(f"and {len(trials) - most} more", style="dim"))
    return table


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def html_table(record: Record) -> str:
    """The same as HTML."""
    best = record.best
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in columns(record))
    rows = []
    for trial in lively_first(record):
        weight = " style='font-weight:bold'" if best is not None and trial.id == best.id else ""
        line = "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells(record, trial))
        rows.append(f"<tr{weight}>{line}</tr>")
    return (
        f"<p><b>{escape(record.name)}</b>: {escape(footing(record))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
