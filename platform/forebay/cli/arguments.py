"""Arguments and options that several commands share. Fast to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from forebay.errors import BadUsage, InvalidOption

AsJson = Annotated[bool, typer.Option("--json", "-j", help="Print one JSON document for programs.")]
AllowLocation = Annotated[
    list[str] | None,
    typer.Option(
        help="Folder that a table may name outside of its own, or a store of a manifest that you trust. Repeatable.",
        metavar="URI",
    ),
]
JobFile = Annotated[
    str,
    typer.Argument(
        help="A Python file with a function `job(...) -> Job`, or for `run` `sweep(...) -> Sweep`.", metavar="JOB"
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Argument(
        help="Parameters of that function, as name=value or --name value. `JOB --help` lists them.",
        metavar="[NAME=VALUE]...",
    ),
]


def refuse_folder(out: str | Path | None) -> None:
    """Refuse an --out that is a folder here, before the work."""
    if out is not None and Path(out).is_dir():
        raise InvalidOption(f"--out {out} is a folder. Give the name of a file.")


@contextmanager
def as_usage() -> Iterator[None]:
    """Raise an `InvalidOption` of the block as `BadUsage`.

    For values that the words alone show to be wrong.
    """
    try:
        yield
    except InvalidOption as error:
        raise BadUsage(str(error), **error.facts) from error
