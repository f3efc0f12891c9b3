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
from forebay.cli import cache, plan, prepare, run, scan, series, warm
from forebay.cli import runs as steering
from forebay.cli.doctor import doctor
from forebay.cli.fleet import group as fleet
from forebay.cli.fleet.submit import submit
from forebay.cli.llm import group as llm
from forebay.cli.output import print_error, print_line
from forebay.cli.report import report
from forebay.cli.rows import rows
from forebay.cli.tables import commands as tables
from forebay.errors import ForebayError
from forebay.runtime.extras import missing_package
from forebay.runtime.formatting import printable


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


app = typer.Typer(
    cls=_Root,
    name="forebay",
    help="Keep accelerators fed: Parquet in a deterministic order, cached per node, into training on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command(rich_help_panel="Data")(scan.scan)
app.command(rich_help_panel="Data")(plan.plan)
app.command(rich_help_panel="Data")(rows)
app.command(rich_help_panel="Data")(series.series)
app.add_typer(prepare.app, name="prepare", rich_help_panel="Data")
app.command(rich_help_panel="Cache")(warm.warm)
app.add_typer(cache.app, name="cache", rich_help_panel="Cache")
app.command(rich_help_panel="Training")(run.run)
app.add_typer(tables.app, name="tables", rich_help_panel="Training")
app.command(rich_help_panel="Training")(doctor)
app.command(rich_help_panel="Training")(report)
app.command(rich_help_panel="Training")(steering.ps)
app.command(rich_help_panel="Training")(steering.scale)
app.command(rich_help_panel="Training")(steering.stop)
app.command(rich_help_panel="Clusters")(submit)
app.add_typer(fleet.app, name="fleet", rich_help_panel="Clusters")
app.add_typer(llm.app, name="llm", rich_help_panel="Language models")


@app.callback(invoke_without_command=True)
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
        app([argument for argument in given if argument != "--debug"], prog_name="forebay")
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
