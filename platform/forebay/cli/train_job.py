"""Training of a job or a sweep, and its output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Self

import typer

from forebay.cli.arguments import as_usage
from forebay.cli.fleet.placed_run import PlacedRun
from forebay.cli.job_file import job_or_sweep_of
from forebay.cli.output import only_the_document, print_facts, print_json, print_line
from forebay.cli.preparation_display import shown_preparations
from forebay.errors import BadUsage, ExitCode, InvalidOption
from forebay.events import Started
from forebay.fleet.client.preparing import PreparingFile
from forebay.runtime.formatting import did_you_mean, metric_text
from forebay.runtime.late_import import late
from forebay.runtime.termination import Termination
from forebay.storage.filesystem import below
from forebay.sweep.report.text import blocks_text, config_text, states_text
from forebay.sweep.run_sweep import run_sweep
from forebay.sweep.sweep import Sweep
from forebay.training.callbacks.progress import Progress
from forebay.training.driver.driver import named_driver, run
from forebay.training.job.job import Job
from forebay.training.job.start_policy import StartPolicy
from forebay.training.run_report.run_table import show_report
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import REPORT_FILE, Result
from forebay.training.runs.storage_check import require_usable_storage

DRIVER = "ray"
TERM = "asked to end (SIGTERM)"
"""Reason of a stop, in the result."""


TRACKERS = {
    "comet": "forebay.training.callbacks.comet:Comet",
    "mlflow": "forebay.training.callbacks.mlflow:MLflow",
    "tensorboard": "forebay.training.callbacks.tensorboard:TensorBoard",
    "wandb": "forebay.training.callbacks.wandb:WandB",
}


def train(
    path: str,
    words: Sequence[str],
    *,
    driver: str | None,
    start: StartPolicy,
    track: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Train the job or sweep of a job file.

    `driver` None is `DRIVER` for a job, and the sweep's own for a sweep.

    `start` is for a job: one process at a time runs a sweep. Variables of a submitter (`PlacedRun`) apply.
    """
    if driver is not None:
        with as_usage():
            named_driver(driver)  # First, because a job may take minutes to write its data.
    trackers = [tracker_named(text) for text in track]  # before the data, too: they may lack a key
    with only_the_document(as_json):
        placed = PlacedRun.of(os.environ)
        if placed.attempt is not None and placed.storage is not None:
            # Before the job file: its import and its data take longer, and need no storage of the run.
            require_usable_storage(placed.storage)
        made = placed.applied_to(_prepared(placed, path, words))
    if isinstance(made, Sweep):
        if track:
            raise InvalidOption("--track is for one run. Give Sweep(callbacks=...), which makes those of each trial.")
        _run_sweep(made if driver is None else replace(made, driver=driver), as_json=as_json)
    else:
        job = replace(made, start=replace(start, attempt=placed.attempt))
        chosen = [] if driver is None else ["--driver", driver]
        # A job without this parameter cannot be continued by words.
        again = ["forebay", "run", *chosen, path, *words] if "name" in job.parameters else []
        show = Progress(command=again)
        _train_job(job, [show, *trackers], driver=driver or DRIVER, as_json=as_json)


def tracker_named(text: str) -> Callback:
    """Tracker of a text such as "wandb:project".

    Raises `InvalidOption` for an unknown one, and as the tracker.
    """
    name, _, project = text.partition(":")
    project = project.removeprefix("//")
    if name not in TRACKERS:
        meant = did_you_mean(name, TRACKERS)
        raise BadUsage(f"--track={text!r} is unknown.{meant} Choose one of {', '.join(TRACKERS)}.")
    made: Callback = late(TRACKERS[name])(*([project] if project else []))
    return made


def _prepared(placed: PlacedRun, path: str, words: Sequence[str]) -> Job | Sweep:
    """Call the job file's function, which prepares the data.

    This is the first step of a run. A submitted run shows its progress.
    """
    if placed.name is None or placed.storage is None:
        return job_or_sweep_of(path, words)
    with PreparingFile(placed.storage, placed.name) as file, shown_preparations(file.tell):
        return job_or_sweep_of(path, words)


def _train_job(job: Job, callbacks: Sequence[Callback], *, driver: str, as_json: bool) -> None:
    """Train a job, and print result and report path.

    At a SIGTERM it ends after the next checkpoint, with the code `ExitCode.TERMINATED`.
    """
    with only_the_document(as_json), _StopAtTerm() as stop:
        result = run(job, named_driver(driver), callbacks=[*callbacks, stop])
    if as_json:
        print_json(asdict(result) | {"report": below(result.path, REPORT_FILE)})
    else:
        show_report(result)
    if stop.has_stopped(result):
        raise typer.Exit(ExitCode.TERMINATED)


class _StopAtTerm(Termination):
    """Callback that stops a run at a SIGTERM, after its next checkpoint."""

    def __init__(self) -> None:
        super().__init__(self._stop)
        self._control: Control | None = None

    def __call__(self, event: object, control: Control) -> None:
        if self._control is None and isinstance(event, Started):
            self._control = control
            # Only now: before, there is nothing to save, and Ray has set a handler of its own since the run began.
            self.install()

    def __enter__(self) -> Self:
        return self

    def has_stopped(self, result: Result) -> bool:
        """Whether the run has ended for the signal, before its last epoch."""
        return self.is_asked and result.stopped == TERM

    def _stop(self) -> None:
        assert self._control is not None
        self._control.obey_stop(TERM, "interrupted")
        print_line(f"{TERM}: the run ends after its next checkpoint.", err=True)


def _run_sweep(sweep: Sweep, *, as_json: bool) -> None:
    """Run a sweep, and print its best trial and paths.

    It shows a live table of the trials.
    """
    with only_the_document(as_json), shown_preparations():
        result = run_sweep(sweep)
    facts = {
        "name": result.name,
        "path": result.path,
        "metric": result.metric,
        "mode": result.mode,
        "stopped": result.stopped,
        "best_value": result.best_value,
        "best_trial": result.best_trial,
        "best_config": result.best_config,
        "best_run": result.best_run,
        "html": result.html,
    }
    if as_json:
        print_json(facts | {"trials": [asdict(trial) for trial in result.record.ranked]})
        return
    print_facts(
        {
            "sweep": result.name,
            "trials": states_text(result.record.trials.values()),
            **({"stopped": result.stopped} if result.stopped else {}),
            f"best {result.metric}": "-" if result.best_value is None else metric_text(result.best_value),
            "best config": config_text(result.best_config),
            "best run": result.best_run or "-",
            **({"cache": blocks} if (blocks := blocks_text(result.record)) else {}),
            "page": result.html,
        }
    )
