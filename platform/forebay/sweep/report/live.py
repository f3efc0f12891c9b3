"""Live table of a sweep's trials.

In a terminal, in a notebook, or as lines in a log.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from forebay.report.console import SafeConsole
from forebay.runtime.formatting import time_text
from forebay.sweep.record.record import Record, State, active_first
from forebay.sweep.report.text import best_text, config_text, summary_line, value_text
from forebay.sweep.report.trial_columns import TrialColumn, TrialRow, live_columns

FIRST_LINE_EVERY_S, LAST_LINE_EVERY_S = 10.0, 60.0
LOG_WIDTH = 160
"""Width of tables in logs, where 80 columns would fold them."""
LINES_AROUND = 4
"""Lines of a table besides the trials: an empty one, the header, the rule, and an empty one before the summary."""
ROOMY = 100
"""Terminal width from which all columns fit."""
NOT_IF_NARROW = ("rows/s", "time")
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
    """Output for a record.

    `end` shows it for the last time.
    """

    def show(self, record: Record) -> None: ...

    def end(self, record: Record) -> None: ...


class LiveView:
    """Display of a record that tolerates failures of its output.

    Updated about once a second.

    If the output fails (a closed terminal), the display ends and the sweep continues.
    """

    def __init__(self, display: Display) -> None:
        self._display: Display | None = display
        self._record: Record | None = None

    def __call__(self, record: Record) -> None:
        self._record = record
        self._try(lambda display: display.show(record))

    def close(self) -> None:
        """Show the current record for the last time."""
        record = self._record
        if record is not None:
            self._try(lambda display: display.end(record))

    def _try(self, show: Callable[[Display], None]) -> None:
        if self._display is None:
            return
        try:
            show(self._display)
        except (OSError, ValueError) as error:  # Python raises ValueError for a closed file
            self._display = None
            log.warning("The sweep continues, but its display has ended: %s", error)


def tell(text: str, *, wanted: bool = True) -> None:
    """Print a line on standard error, if `wanted`."""
    if wanted:
        SafeConsole(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


@contextmanager
def live_display(wanted: bool = True, console: Console | None = None) -> Iterator[Callable[[Record], None]]:
    """Yield a function that shows a sweep's record.

    To be called about once a second, during the block.

    Outside a notebook, `console` is the output; by default standard error.
    """
    if not wanted:
        yield lambda record: None  # noqa: ARG005
        return
    live = LiveView(_display(console))
    try:
        yield live
    finally:
        live.close()


def _display(console: Console | None) -> Display:
    if console is None and "IPython" in sys.modules:
        from forebay.report.notebook import is_notebook  # noqa: PLC0415 - where a notebook may be

        if is_notebook():
            return NotebookTable()
    console = console or SafeConsole(stderr=True, highlight=False)
    if console.is_terminal:
        return TerminalTable(console)
    return LogLines(SafeConsole(file=console.file, width=LOG_WIDTH, highlight=False))


class TerminalTable:
    """Table that is redrawn on the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen: Screen | None = None

    def show(self, record: Record) -> None:
        if self._screen is None:
            # Output of trials appears above the table, unless it goes into a file or a pipe.
            is_seen = sys.stdout.isatty()
            self._screen = Screen(console=self._console, auto_refresh=False, redirect_stdout=is_seen)
            self._screen.start()
        below = len(Text(summary_line(record)).wrap(self._console, self._console.width))
        room = max(self._console.height - LINES_AROUND - below, 2)
        self._screen.update(self._drawn(record, room), refresh=True)

    def end(self, record: Record) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.update(self._drawn(record), refresh=True)
            screen.stop()

    def _drawn(self, record: Record, most: int | None = None) -> Group:
        return Group(trial_table(record, most, self._console.width), Text(summary_line(record)))


class NotebookTable:
    """Table in a notebook cell, replaced as a whole."""

    def __init__(self) -> None:
        from forebay.report.notebook import CellOutput  # noqa: PLC0415 - of notebooks

        self._cell = CellOutput()

    def show(self, record: Record) -> None:
        self._cell.show(html_table(record))

    def end(self, record: Record) -> None:
        self.show(record)


class LogLines:
    """Lines in a log.

    One per new best value and per ended trial, the status less and less often, a table at the end.
    """

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
        self._log_ended(record)
        if record.best_value != self._best:
            self._best = record.best_value
            best = record.best
            self._print(record, f"{best_text(record)}: {config_text(best.config_at_best) if best else '-'}")
            self._schedule_next(now)
        elif now >= self._due:
            self._print(record, summary_line(record))
            self._schedule_next(now)

    def end(self, record: Record) -> None:
        self._log_ended(record)
        self._console.print(trial_table(record))
        self._print(record, summary_line(record))

    def _begin(self, record: Record, now: float) -> None:
        """Ignore the results of an earlier start."""
        self._began, self._due = now, now + FIRST_LINE_EVERY_S
        self._ended = {trial.id for trial in record.trials.values() if trial.has_ended}
        self._best = record.best_value
        limit = "" if record.deadline_left_s is None else f", {time_text(record.deadline_left_s)} until the deadline"
        goal = "highest" if record.mode == "max" else "lowest"
        self._print(record, f"sweep {record.name}: for the {goal} {record.metric}{limit}")

    def _schedule_next(self, now: float) -> None:
        assert self._began is not None
        self._due = now + min(max(FIRST_LINE_EVERY_S, (now - self._began) / 10), LAST_LINE_EVERY_S)

    def _log_ended(self, record: Record) -> None:
        for trial in record.trials.values():
            if trial.has_ended and trial.id not in self._ended:
                self._ended.add(trial.id)
                last = trial.last
                came_to = f", {record.metric} {value_text(last.value)}" if last else ""
                why = f": {trial.error}" if trial.error else ""
                self._print(record, f"{trial.id} {trial.state} after {_epochs(trial.epochs)}{came_to}{why}")

    def _print(self, record: Record, text: str) -> None:
        self._console.print(f"{time_text(record.elapsed_s):>7}  {text}", markup=False, soft_wrap=True)


def trial_table(record: Record, most: int | None = None, width: int = LOG_WIDTH) -> Table:
    """Return a table with one row per trial.

    At most `most` rows, the best trial in bold. `width` is the number of columns of the terminal.
    """
    best = record.best
    shown = [each for each in live_columns(record.metric) if width >= ROOMY or each.title not in NOT_IF_NARROW]
    table = TrialTable(shown, record.metric, best=best.id if best else None)
    trials = active_first(record) if most is not None else record.ranked
    fitting = len(trials) if most is None or len(trials) <= most else most - 1
    for trial in trials[:fitting]:
        table.add_trial(TrialRow.of_record(record, trial))
    if fitting < len(trials):
        table.table.add_row(Text(f"and {len(trials) - fitting} more", style="dim"))
    return table.table


class TrialTable:
    """Table of trials for a terminal.

    The trial `best` is bold. If narrow, configs and a long metric name are cut.
    """

    def __init__(self, columns: Sequence[TrialColumn], metric: str, best: str | None) -> None:
        self.table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        self._columns, self._best = columns, best
        for title in (each.title for each in columns):
            is_text = title in ("trial", "state", "config")
            may_be_cut = title in ("config", metric)  # rich narrows what may be wrapped before anything else
            justify: JustifyMethod = "left" if is_text else "right"
            self.table.add_column(_one_line(title), justify=justify, no_wrap=not may_be_cut, overflow="ellipsis")

    def add_trial(self, row: TrialRow) -> None:
        """Add the row of one trial.

        Its state has the color of the state.
        """
        texts = [_one_line(each.text(row)) for each in self._columns]
        texts[1].stylize(COLOURS[row.state])
        self.table.add_row(*texts, style="bold" if row.id == self._best else None)


def _one_line(text: str) -> Text:
    """Single-line text, cut with `…`."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def html_table(record: Record) -> str:
    """The table as HTML."""
    best = record.best
    columns = live_columns(record.metric)
    head = "".join(f"<th style='text-align:left'>{escape(each.title)}</th>" for each in columns)
    rows = []
    for trial in active_first(record):
        weight = " style='font-weight:bold'" if best is not None and trial.id == best.id else ""
        row = TrialRow.of_record(record, trial)
        line = "".join(f"<td style='text-align:left'>{escape(each.text(row))}</td>" for each in columns)
        rows.append(f"<tr{weight}>{line}</tr>")
    return (
        f"<p><b>{escape(record.name)}</b>: {escape(summary_line(record))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
