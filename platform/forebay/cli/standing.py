"""A sweep and its trials as `forebay ps` shows them."""

from __future__ import annotations

from forebay.cli.output import human_age
from forebay.driver.status import RunStatus
from forebay.driver.wording import time_text
from forebay.sweep.standing import SweepStanding, TrialStanding
from forebay.sweep.wording import value_text

TRIAL_COLUMNS = ("trial", "state", "workers", "epochs", "metric", "best", "rows/s", "time", "run")


def headline(sweep: SweepStanding) -> str:
    """`sweep ctr: best auc 0.7312 (a1b2_00003), 4 of 4 slots in use, 2:10 until the deadline`."""
    best = (
        "no value yet" if sweep.best is None else f"best {sweep.metric} {value_text(sweep.best)} ({sweep.best_trial})"
    )
    slots = "" if sweep.slots is None else f", {sweep.slots_in_use} of {sweep.slots} slots in use"
    left = sweep.deadline_left_s
    limit = f", {time_text(sweep.elapsed_s)} so far" if left is None else f", {time_text(left)} until the deadline"
    stopping = f", stopping: {sweep.stopping}" if sweep.stopping else ""
    return f"sweep {sweep.name}: {best}{slots}{limit}{stopping}"


def trial_cells(trial: TrialStanding, run: RunStatus | None) -> tuple[object, ...]:
    """A trial's line; `run` is its run if that is under way."""
    return (
        trial.id,
        trial.state,
        trial.workers if run is None or run.target == trial.workers else f"{trial.workers} -> {run.target}",
        trial.epochs if run is None else f"{run.epoch} of {run.epochs}",
        value_text(trial.value),
        value_text(trial.best),
        "-" if run is None else f"{run.rows_per_s:,.0f}",
        human_age(trial.seconds),
        trial.run,
    )
