"""`forebay score`: answers of a language model to every row of a dataset."""

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


def score(
    words: Words = None,
    sweep_batch: Annotated[
        str | None,
        typer.Option(help="Write no answers, but measure these batch sizes on the first rows: 1,8,16,32,64,128."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score each row of a dataset once: text, likelihoods, vectors or verdicts, in Parquet of the same order.

    What is written is kept: a run that was stopped goes on where it is started again with the same arguments.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.scoring.score import run_batch_sweep, run_score  # noqa: PLC0415

    if sweep_batch is not None:
        run_batch_sweep(words or (), sweep_batch, as_json=as_json)
    else:
        run_score(words or (), as_json=as_json)


Metric = Annotated[
    list[str] | None,
    typer.Argument(
        help="metric=perplexity model=FOLDER data=URI; metric=exact_match answers=FOLDER expected=COLUMN; or "
        "metric=win_rate answers=FOLDER against=FOLDER data=URI judge=MODEL to=FOLDER.",
        metavar="NAME=VALUE...",
    ),
]


def evaluate(words: Metric = None, as_json: AsJson = False) -> None:
    """Measure a model or its answers: perplexity on documents, exact matches, or wins over other answers.

    Win rates ask a judge about each pair in both orders. With to=, a measurement that was stopped goes on.
    """
    from forebay.cli.scoring.evaluate import run_evaluation  # noqa: PLC0415 - see `score`

    run_evaluation(words or (), as_json=as_json)
