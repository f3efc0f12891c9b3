"""`forebay run`: train a job, or a sweep of jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.arguments import AsJson, JobFile, Parameters
from forebay.errors import BadUsage
from forebay.training.job.start_policy import StartPolicy


def run(
    job: JobFile,
    parameters: Parameters = None,
    driver: Annotated[
        str | None,
        typer.Option(
            "--driver",
            "-d",
            help="ray (Ray Train), horovod (Elastic Horovod on Ray) or local (no Ray).",
            show_default="ray, or what the sweep says",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow", help="If the run is under way elsewhere: follow it to its end, or refuse to start."
        ),
    ] = True,
    takeover_after: Annotated[
        str,
        typer.Option(help="Continue here if its process elsewhere sent no heartbeat for this long.", metavar="TIME"),
    ] = "60s",
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Record the run: comet, mlflow, wandb or tensorboard, with :NAME of a project, experiment or folder.",
            metavar="TRACKER[:NAME]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a job file with its parameters.

    Ends with a table and a report in the run's folder.

    A name that is started twice trains once. Exit code 75: another start has taken over this run.

    A job file with a function `sweep(...) -> Sweep` trains many trials; ends with the best one and a page of all.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.train_job import train  # noqa: PLC0415

    start = StartPolicy(follow=follow, takeover_s=_seconds(takeover_after))
    train(job, parameters or (), driver=driver, start=start, track=track or (), as_json=as_json)


def _seconds(text: str) -> float:
    from forebay.training.job.duration import seconds_of  # noqa: PLC0415 - pydantic takes time to import

    try:
        return seconds_of(text)
    except ValueError as error:
        raise BadUsage(f"--takeover-after={text!r} is not a time: {error}.") from error
