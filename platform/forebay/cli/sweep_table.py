"""A sweep and its trials as `forebay ps` shows them."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from forebay.formatting import count_text, time_text
from forebay.runs.status import RunStatus
from forebay.sweep.record.status import SweepStatus, TrialStatus
from forebay.sweep.report.live import COLOURS, empty_table, one_line
from forebay.sweep.report.text import value_text


def headline(sweep: SweepStatus) -> str:
    """`sweep ctr: best auc 0.7312 (a1b2_00003), 4 of 4 slots in use, 2:10 until the deadline`."""
    best = (
        "no value yet" if sweep.best is None else f"best {sweep.metric} {value_text(sweep.best)} ({sweep.best_trial})"
    )
    slots = "" if sweep.slots is None else f", {sweep.slots_in_use} of {sweep.slots} slots in use"
    left = sweep.deadline_left_s
    limit = f", {time_text(sweep.elapsed_s)} so far" if left is None else f", {time_text(left)} until the deadline"
    stopping = f", stopping: {sweep.stopping}" if sweep.stopping else ""
    return f"sweep {sweep.name}: {best}{slots}{limit}{stopping}"


def trial_table(sweep: SweepStatus, runs: Mapping[str, RunStatus]) -> Table:
    """A line per trial, the best one in bold; `runs` are those under way, by name."""
    names = ("trial", "state", "workers", "epochs", sweep.metric, "best", "rows/s", "time")
    table = empty_table(names, sweep.metric)
    for trial in sweep.trials:
        texts = [one_line(cell) for cell in trial_cells(trial, runs.get(trial.run))]
        texts[1].stylize(COLOURS[trial.state])
        table.add_row(*texts, style="bold" if trial.id == sweep.best_trial else None)
    return table


def trial_cells(trial: TrialStatus, run: RunStatus | None) -> tuple[str, ...]:
    """A trial's line; `run` is its run if that is under way."""
    return (
        trial.id,
        trial.state,
        _workers(trial.workers, trial.workers if run is None else run.target),
        str(trial.epochs or "-") if run is None else f"{run.epoch} of {run.epochs}",
        value_text(trial.value),
        value_text(trial.best),
        "-" if run is None else count_text(run.rows_per_s),
        time_text(trial.seconds),
    )


def _workers(there: int, wanted: int) -> str:
    if there != wanted:
        return f"{there} -> {wanted}"
    return str(there) if there else "-"
