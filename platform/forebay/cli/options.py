"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]
JobFile = Annotated[str, typer.Argument(help="A Python file with a function `job(...) -> Job`.", metavar="JOB")]
Parameters = Annotated[
    list[str] | None,
    typer.Argument(help="Parameters of the job function, as name=value.", metavar="[NAME=VALUE]..."),
]
