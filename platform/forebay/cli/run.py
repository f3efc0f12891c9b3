"""`forebay run`: train a job, or a sweep of jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.arguments import AsJson, JobFile, Parameters


def run(
    job: JobFile,
    parameters: Parameters = None,
    driver: Annotated[
        str | None,
        typer.Option(
            help="ray (Ray Train), horovod (Elastic Horovod on Ray) or local (no Ray).",
            show_default="ray, or what the sweep says",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a job file with its parameters. Ends with a table and two plots in the run's folder.

    A job file with a function `sweep(...) -> Sweep` trains many trials; ends with the best one and a page of all.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.train_job import train  # noqa: PLC0415

    train(job, parameters or (), driver=driver, as_json=as_json)
