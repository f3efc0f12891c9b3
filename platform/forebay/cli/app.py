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
from forebay.cli.output import prepare_streams, print_error, print_line
from forebay.cli.ray_token import show_token
from forebay.errors import ExitCode, ForebayError
from forebay.runtime.extras import missing_package
from forebay.runtime.formatting import did_you_mean, printable
from forebay.runtime.late_import import late

COMMANDS = {
    "init": ("Data", "forebay.cli.init:init"),
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
ELSEWHERE = {
    "evaluate": "llm evaluate",
    "export": "llm export",
    "memory": "llm memory",
    "peek": "rows",
    "ps": "jobs",
    "resume": "run",
    "score": "llm score",
    "status": "jobs",
    "train": "run",
    "version": "--version",
}
"""Commands of other tools, and of earlier releases, by ours."""
OF_JOBS = ("plan", "rows", "warm", "run", "doctor")
"""Commands that take the parameters of a job file."""
_AS_JSON = frozenset({"--json", "-j", "-jf", "-fj"})
CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong command line, 3 refused input, 74 fault of the machine, "
    "75 taken over, 78 unusable storage, 130 Ctrl-C, 143 SIGTERM."
)
"""End of each command's help. `ExitCode` has the numbers."""


class _Root(TyperGroup):
    """The command, whose errors about its words cannot steer the terminal.

    A shell that expands a pattern makes words of the names of files.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _end_help(self)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:  # as below
            if args and args[0] in ELSEWHERE and isinstance(getattr(error, "message", None), str):
                error.message = f"No such command {args[0]!r}. Did you mean {ELSEWHERE[args[0]]!r}?"  # type: ignore[attr-defined]
            raise

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _printable_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _printable_errors():
            return super().invoke(ctx)


def _end_help(command: Any) -> None:
    command.epilog = CODES
    for each in getattr(command, "commands", {}).values():
        _end_help(each)


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Typer has its own copy of click in some versions, so its classes have no stable name.
        if isinstance(message := getattr(error, "message", None), str):
            near = getattr(error, "possibilities", None) or ()
            meant = did_you_mean(getattr(error, "option_name", ""), near) if near else ""
            error.message = printable(message) + (f".{meant}" if meant else "")  # type: ignore[attr-defined]
            if meant:
                error.possibilities = None  # type: ignore[attr-defined]
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
        context_settings={"help_option_names": ["--help", "-h"]},
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
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
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
    prepare_streams()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableLines())
    try:
        words = [argument for argument in given if argument != "--debug"]
        show_token()
        app_of(words)(words, prog_name="forebay")
    except (ForebayError, ImportError) as error:
        known = error if isinstance(error, ForebayError) else missing_package(error, "This command")
        if debug or known is None:
            raise
        print_error(known, as_json=not _AS_JSON.isdisjoint(given))
        sys.exit(known.exit_status)
    except KeyboardInterrupt:  # while a command is imported: Typer's own begins later
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        sys.excepthook = _print_traceback  # Typer has set its own.


class _PrintableLines(logging.Formatter):
    """Lines of the log that cannot steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print_line("".join(traceback.format_exception(kind, error, trace)).rstrip(), err=True)
