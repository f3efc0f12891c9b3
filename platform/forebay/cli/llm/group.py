"""`forebay llm`: export, memory, scoring and evaluation of language models."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.llm.memory import memory
from forebay.cli.output import print_facts, print_json, progress_bar
from forebay.cli.settings import NamedRun, RunStorage
from forebay.errors import BadUsage
from forebay.runtime.formatting import bytes_text

app = typer.Typer(help="Export, size, score and evaluate language models.", no_args_is_help=True)
app.command()(memory)


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="Name or folder of a run that trained a language model.", metavar="RUN")],
    to: Annotated[str, typer.Option("--to", "-o", help="Folder for the model, on any storage: new or empty.")],
    step: Annotated[
        str | None,
        typer.Option(help="Step of the checkpoint, or best, of the best evaluation.", show_default="the newest"),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add the adapter to its base model.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16 or fp16.", show_default="the base model's; fp32 for an adapter")
    ] = None,
    storage: RunStorage = None,
    as_json: AsJson = False,
) -> None:
    """Export a trained model as a Hugging Face folder.

    For transformers and vLLM. Needs no GPU and little memory.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.llm.hf_folder.exporting import export as export_run  # noqa: PLC0415

    at, named = step_named(step), NamedRun.of(name, storage)
    with progress_bar(in_bytes=True, hidden=as_json) as bar:
        task = bar.add_task("writing", total=None)
        made = export_run(
            named.name,
            to,
            storage=named.found_in(),
            step=at,
            merge=merge,
            dtype=dtype,
            wrote=partial(bar.advance, task),
        )
    facts = asdict(made)
    if as_json:
        print_json(facts)
        return
    print_facts(
        {
            "folder": made.folder,
            "run": f"{made.run}, step {made.step}",
            "content": f"{made.content}, {made.dtype}",
            "tensors": f"{made.tensors}, {bytes_text(made.num_bytes)}",
            "files": len(made.files),
            **({} if made.is_new else {"found": "it was there before"}),
        }
    )


def step_named(text: str | None) -> int | Literal["best"] | None:
    """Step of a text on the command line.

    Raises `InvalidOption` for another text.
    """
    if text is None:
        return None
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise BadUsage(f"--step={text!r} is no step. Give a number, or best.")
    return int(text)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="model=FOLDER data=URI to=URI, and options of score.ScoreRequest: engine=hf workers=2 batch=64 ...",
        metavar="NAME=VALUE...",
    ),
]


@app.command()
def score(
    words: Words = None,
    sweep_batch: Annotated[
        str | None,
        typer.Option(help="Write no answers, but measure these batch sizes on the first rows: 1,8,16,32,64,128."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score each row of a dataset once.

    Text, likelihoods, vectors or verdicts, in Parquet of the same order.

    What is written is kept: a run that was stopped goes on where it is started again with the same arguments.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.llm.score import run_batch_sweep, run_score  # noqa: PLC0415

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


@app.command()
def evaluate(words: Metric = None, as_json: AsJson = False) -> None:
    """Measure a model or its answers.

    Perplexity on documents, exact matches, or wins over other answers.

    Win rates ask a judge about each pair in both orders. With to=, a measurement that was stopped goes on.
    """
    from forebay.cli.llm.evaluate import run_evaluation  # noqa: PLC0415 - see `score`

    run_evaluation(words or (), as_json=as_json)
