"""`forebay score`: answers of a language model to every row of a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.arguments import AsJson

Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="model=FOLDER data=URI to=URI, and options of score.ScoreRequest: engine=hf workers=2 batch=64 ...",
        metavar="NAME=VALUE...",
    ),
]


def score(words: Words = None, as_json: AsJson = False) -> None:
    """Score each row of a data set once: text, likelihoods, vectors or verdicts, in Parquet of the same order.

    What is written is kept: a run that was stopped goes on where it is started again with the same arguments.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.scoring.score import run_score  # noqa: PLC0415

    run_score(words or (), as_json=as_json)
