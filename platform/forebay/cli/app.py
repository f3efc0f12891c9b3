"""The `forebay` command: its groups, and its output for errors."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forebay import __version__
from forebay.cli.job_command import JobCommand
from forebay.cli.output import print_error, print_line
from forebay.errors import ForebayError
from forebay.runtime.extras import missing_package
from forebay.runtime.formatting import printable
from forebay.runtime.late_import import late

COMMANDS = {
    "scan": ("Data", "forebay.cli.scan:scan"),
    "plan": ("Data", "forebay.cli.plan:plan"),
    "rows": ("Data", "forebay.cli.rows:rows"),
    "series": ("Data", "forebay.cli.series:series"),
    "prepare": ("Data", "forebay.cli.prepare:app"),
    "warm": ("Cache", "forebay.cli.warm:warm"),
    "cache": ("Cache", "forebay.cli.cache:app"),
    "run": ("Training", "forebay.cli.run:run"),
    "tables": ("Training", "forebay.cli.tables.commands:app"),
    "doctor": ("Training", "forebay.cli.doctor:doctor"),
    "report": ("Training", "forebay.cli.report:report"),
    "submit": ("Jobs", "forebay.cli.fleet.submit:submit"),
    "jobs": ("Jobs", "forebay.cli.fleet.jobs:jobs"),
    "logs": ("Jobs", "forebay.cli.fleet.jobs:logs"),
    "scale": ("Jobs", "forebay.cli.runs:scale"),
    "stop": ("Jobs", "forebay.cli.runs:stop"),
    "fleet": ("Clusters", "forebay.cli.fleet.group:app"),
    "llm": ("Language models", "forebay.cli.llm.group:app"),
}
"""Panel and function, or group, of each command. Only the one that is called is imported: all take a second."""
OF_JOBS = ("plan", "rows", "warm", "run", "doctor")
"""Commands that take the parameters of a job file."""


class _Root(TyperGroup):
    """The command, whose errors about its words cannot steer the terminal.

    A shell that expands a pattern makes words of the names of files.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _printable_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Typer has its own copy of click in some versions, so its classes have no stable name.
        if isinstance(message := getattr(error, "message", None), str):
            error.message = printable(message)  # type: ignore[attr-defined]
        raise


def app_of(words: Sequence[str] = ()) -> typer.Typer:
    """Application with the command that `words` call, or with all.

    All are there where the words name none of them, for the help and for errors.
    """
    app = typer.Typer(
        cls=_Root,
        name="forebay",
        help="Keep accelerators fed: Parquet in a deterministic order, cached per node, into training on Ray.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(root)
    called = next((word for word in words if not word.startswith("-")), "")
    for name in [called] if called in COMMANDS else COMMANDS:
        panel, home = COMMANDS[name]
        found: object = late(home)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=panel)
        else:
            kind = JobCommand if name in OF_JOBS else None
            app.command(name, cls=kind, rich_help_panel=panel)(late(home))
    return app


def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. Allowed anywhere.")] = False,  # noqa: ARG001
) -> None:
    """Print the version, or the help without a command."""
    if version:
        print_line(__version__)
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    A `ForebayError` is printed without a traceback, and ends the process with its exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableLines())
    try:
        words = [argument for argument in given if argument != "--debug"]
        app_of(words)(words, prog_name="forebay")
    except (ForebayError, ImportError) as error:
        known = error if isinstance(error, ForebayError) else missing_package(error, "This command")
        if debug or known is None:
            raise
        print_error(known, as_json="--json" in given)
        sys.exit(known.exit_status)
    finally:
        sys.excepthook = _print_traceback  # Typer has set its own.


class _PrintableLines(logging.Formatter):
    """Lines of the log that cannot steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print_line("".join(traceback.format_exception(kind, error, trace)).rstrip(), err=True)
