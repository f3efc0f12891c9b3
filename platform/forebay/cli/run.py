"""`forebay run`: train a job."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.options import AsJson, JobFile, Parameters


def run(
    job: JobFile,
    parameters: Parameters = None,
    driver: Annotated[
        str, typer.Option(help="ray (Ray Train), horovod (Elastic Horovod on Ray) or local (no Ray).")
    ] = "ray",
    as_json: AsJson = False,
) -> None:
    """Train a job file with its parameters; ends with a table and two plots in the run's folder."""
    # Here, because importing torch takes seconds and the other commands do without it.
    from forebay.cli.training import train_job  # noqa: PLC0415

    train_job(job, parameters or (), driver=driver, as_json=as_json)
