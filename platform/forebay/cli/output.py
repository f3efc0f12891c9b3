"""Printing for people and for programs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from textwrap import TextWrapper
from typing import Any, Literal, TextIO

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from forebay.errors import ForebayError, WriteFailed
from forebay.report.console import SafeConsole
from forebay.report.fitted_table import FittedTable
from forebay.runtime.formatting import bytes_text, printable
from forebay.storage.json_file import to_json

_STDOUT, _STDERR = 1, 2
_PIPE_WIDTH = 160
_LINE_EVERY_S, _LINE_AT_MOST_EVERY_S = 5.0, 60.0
LINE_WIDTH = 80
"""Longest line of a text for people on a terminal."""


def prepare_streams() -> None:
    """Let the standard streams take any text, and standard error any fault.

    Characters that the encoding lacks are escaped: else one name of a column ends a command where the locale is not
    UTF-8. Lines of a log that is full, or that nobody reads any more, are lost: no run ends for them. Output that
    cannot be written is a `WriteFailed`, but for a closed pipe.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)  # a closed stream: else a file of a run gets its number, and stray lines
    os.close(number)
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(_STDOUT, "w", closefd=False))
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(_STDERR, "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout = _Stream(sys.stdout, is_log=False)
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        sys.stderr = _Stream(sys.stderr, is_log=True)


class _Stream(io.TextIOWrapper):
    """Standard stream of the process."""

    def __init__(self, stream: io.TextIOWrapper, *, is_log: bool) -> None:
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._is_log, self._has_failed = is_log, False

    def write(self, text: str, /) -> int:
        self._guard(partial(super().write, text))
        return len(text)

    def flush(self) -> None:
        self._guard(super().flush)

    def _guard(self, act: Callable[[], object]) -> None:
        if self._has_failed:  # at the end of the process, Python flushes once more
            return
        try:
            act()
        except OSError as error:
            if self._is_log:
                return
            if isinstance(error, BrokenPipeError):  # `head` has enough: typer ends the command without a word
                raise
            self._has_failed = True
            raise WriteFailed(
                f"standard output cannot be written ({error.strerror}). Give it a file with room, or a terminal."
            ) from error


def print_json(facts: object) -> None:
    """Print one JSON document on a line of standard output.

    Numbers that are not finite become null.

    Characters outside of ASCII are escaped, so that none steers a terminal. Written at once: a program may follow.
    """
    sys.stdout.write(to_json(facts, not_finite=lambda _: None) + "\n")
    sys.stdout.flush()


@contextmanager
def only_the_document(wanted: bool) -> Iterator[None]:
    """Redirect standard output to standard error, if `wanted`.

    For the length of the block, also for processes that a job starts.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(_STDOUT), "w") as kept, redirect_stdout(sys.stderr):
        os.dup2(_STDERR, _STDOUT)
        try:
            yield
        finally:
            os.dup2(kept.fileno(), _STDOUT)


def print_line(text: str, *, err: bool = False) -> None:
    """Print text to standard output, or with `err` to standard error.

    Characters that could steer a terminal are escaped.
    """
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{printable(text)}\n")
    stream.flush()


def print_facts(facts: Mapping[str, object]) -> None:
    """Print pairs of name and value, one per line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(printable(name), Text(printable(str(value))))
    _console().print(table)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str | None = None,
    justify: Literal["left", "right"] = "left",
) -> None:
    """Print rows under named columns.

    Makes several tables if one would be wider than the terminal.
    """
    _console().print(FittedTable(columns, rows, title=title, justify=justify))


def output_width() -> int:
    """Characters of a line of standard output."""
    return _console().width


def print_parts(*parts: RenderableType) -> None:
    """Print rich renderables, one below the other.

    They have the width of the terminal.
    """
    console = _console()
    for part in parts:
        console.print(part)


def print_error(error: ForebayError, *, as_json: bool) -> None:
    """Print an error to standard error, without a traceback."""
    if as_json:
        facts = {"error": type(error).__name__, "message": str(error), "facts": error.facts}
        sys.stderr.write(to_json(facts, not_finite=lambda _: None) + "\n")
    else:
        print_line(_fitted(f"{type(error).__name__}: {error}"), err=True)


def _fitted(text: str) -> str:
    """Return a text whose lines fit a terminal, wrapped at words.

    A pipe gets them whole: programs search there.
    """
    if not _has_width(sys.stderr):
        return text
    width = min(LINE_WIDTH, SafeConsole(stderr=True).width)
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    # A path or a command stays one word, to be copied.
    fill = TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return line if len(line) <= width else "\n".join(fill.wrap(line))


def progress_bar(*, in_bytes: bool = False, hidden: bool = False) -> Progress:
    """Progress bar on standard error, lines in a log.

    Standard output stays clean for programs. One line per task.

    It shows completed and total numbers, with `in_bytes` also the bytes per second, and the remaining time.
    """
    amount: tuple[ProgressColumn, ...] = (
        (DownloadColumn(binary_units=True), _RateColumn()) if in_bytes else (MofNCompleteColumn(),)
    )
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(bar_width=24), *amount, TimeRemainingColumn(elapsed_when_finished=True))
    return _Bars(*columns, console=SafeConsole(stderr=True), disable=hidden)


class _Bars(Progress):
    """Bars that are lines in a log.

    Every 5 s, then less and less often.
    """

    _began = _due = 0.0

    def add_task(
        self,
        description: str,
        start: bool = True,
        total: float | None = 100.0,
        completed: int = 0,
        visible: bool = True,
        **fields: Any,
    ) -> TaskID:
        # In a log, a task that has not begun says nothing, also when the command fails.
        visible = visible and self.console.is_terminal
        return super().add_task(description, start, total, completed, visible, **fields)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields, visible=True)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        super().update(task_id, visible=True)
        self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        now = self.get_time()
        if self.disable or self.console.is_terminal or self.finished:
            return
        self._began, self._due = self._began or now, self._due or now + _LINE_EVERY_S
        if now >= self._due:
            self._due = now + min(max(_LINE_EVERY_S, (now - self._began) / 10), _LINE_AT_MOST_EVERY_S)
            # The columns of a bar, without the bar.
            columns = [
                each for each in self.columns if isinstance(each, ProgressColumn) and not isinstance(each, BarColumn)
            ]
            (task,) = [each for each in self.tasks if each.id == task_id]
            shown = [each(task) for each in columns]
            self.console.print(*shown, soft_wrap=True)


class _RateColumn(ProgressColumn):
    """Bytes per second: recent, and overall at the end."""

    def render(self, task: Task) -> Text:
        rate = task.completed / task.elapsed if task.finished and task.elapsed else task.speed
        return Text("- B/s" if rate is None else f"{bytes_text(rate)}/s", style="progress.data.speed")


def _console() -> SafeConsole:
    return SafeConsole() if _has_width(sys.stdout) else SafeConsole(width=_PIPE_WIDTH)


def _has_width(stream: TextIO) -> bool:
    # A pipe has no width: without COLUMNS, rich would split tables at 80 columns there.
    return stream.isatty() or "COLUMNS" in os.environ
