"""Columns of all tables of trials.

The live table, the page, `forebay jobs --ray`, and `SweepResult.table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.report.columns import NONE, Column, column
from forebay.runtime.formatting import count_text, metric_text, time_text, workers_text
from forebay.sweep.record.record import Record, State, TrialRecord
from forebay.sweep.record.status import TrialStatus
from forebay.sweep.report.text import config_text, word
from forebay.training.runs.status import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """Row of one trial.

    From its sweep's record, or from the status of a running sweep (without configs).

    `last` is the value of the newest epoch, `best` the best one, of `best_epoch`. `rows_per_s` is None unless the
    trial runs. `run_epochs` is the number of epochs of its run, None unless the run was asked.
    """

    id: str
    state: State
    epochs: int
    run_epochs: int | None = None
    last: float | None
    best: float | None
    best_epoch: int | None = None
    workers: int
    target: int
    rows_per_s: float | None
    seconds: float
    config: Mapping[str, Any] = field(default_factory=dict)
    config_at_best: Mapping[str, Any] = field(default_factory=dict)
    blocks: str | None = None
    error: str | None
    run: str

    @classmethod
    def of_record(cls, record: Record, trial: TrialRecord) -> TrialRow:
        """Return the row of a recorded trial.

        Its `run` is the run of the best value.
        """
        best, last = trial.best(record.mode), trial.last
        return cls(
            id=trial.id,
            state=trial.state,
            epochs=trial.epochs,
            last=last.value if last else None,
            best=best.value if best else None,
            best_epoch=best.epoch if best else None,
            workers=trial.workers,
            target=trial.workers,
            rows_per_s=last.rows_per_s if last and trial.state == "running" else None,
            seconds=trial.seconds(record.elapsed_s),
            config=trial.config,
            config_at_best=trial.config_at_best,
            blocks=trial.blocks,
            error=trial.error,
            run=trial.run_at_best,
        )

    @classmethod
    def of_status(cls, trial: TrialStatus, run: RunStatus | None) -> TrialRow:
        """Return the row of a trial in a running sweep.

        `run` is the trial's run, None unless it is under way.
        """
        return cls(
            id=trial.id,
            state=trial.state,
            epochs=trial.epochs if run is None else run.epoch,
            run_epochs=None if run is None else run.epochs,
            last=trial.value,
            best=trial.best,
            workers=trial.workers,
            target=trial.workers if run is None else run.target,
            rows_per_s=None if run is None else run.rows_per_s,
            seconds=trial.seconds,
            error=trial.error,
            run=trial.run,
        )


TrialColumn = Column[TrialRow]


def _epochs(row: TrialRow) -> str:
    if row.run_epochs is not None:
        return f"{row.epochs} of {row.run_epochs}"
    return str(row.epochs) if row.epochs else NONE


def _workers(row: TrialRow) -> str:
    return workers_text(row.workers, row.target) if row.workers or row.target else NONE


TRIAL: TrialColumn = column("trial", lambda row: row.id)
STATE: TrialColumn = column("state", lambda row: row.state)
EPOCHS: TrialColumn = Column(title="epochs", value=lambda row: row.epochs, text=_epochs)
LAST: TrialColumn = column("last", lambda row: row.last, metric_text)
BEST: TrialColumn = column("best", lambda row: row.best, metric_text)
BEST_EPOCH: TrialColumn = column("best_epoch", lambda row: row.best_epoch)
WORKERS: TrialColumn = Column(title="workers", value=lambda row: row.workers, text=_workers)
RATE: TrialColumn = column("rows/s", lambda row: row.rows_per_s, count_text)
TIME: TrialColumn = column("time", lambda row: row.seconds, time_text)
CONFIG: TrialColumn = column("config", lambda row: row.config, config_text)
BLOCKS: TrialColumn = column("blocks", lambda row: row.blocks)
ERROR: TrialColumn = column("error", lambda row: row.error)


def live_columns(metric: str) -> tuple[TrialColumn, ...]:
    """Return the columns of the live table."""
    return (TRIAL, STATE, EPOCHS, LAST.titled(metric), BEST, WORKERS, RATE, TIME, CONFIG)


def status_columns(metric: str) -> tuple[TrialColumn, ...]:
    """Columns of `forebay jobs --ray`."""
    return (TRIAL, STATE, WORKERS, EPOCHS, LAST.titled(metric), BEST, RATE, TIME)


def page_columns(metric: str, parameters: Sequence[str]) -> tuple[TrialColumn, ...]:
    """Return the columns of the page.

    One for each of the swept `parameters`, with its value at the best epoch.
    """
    configs = (_parameter(name, name) for name in parameters)
    return (TRIAL, STATE, EPOCHS, BEST.titled(f"best {metric}"), LAST.titled(f"last {metric}"), TIME, *configs)


def data_columns(metric: str, parameters: Sequence[str], run_path: Callable[[str], str]) -> tuple[TrialColumn, ...]:
    """Return the columns of `SweepResult.table`.

    `run_path` returns the folder of a run.
    """
    return (
        TRIAL,
        STATE,
        EPOCHS,
        BEST.titled(f"best_{metric}"),
        BEST_EPOCH,
        LAST.titled(f"last_{metric}"),
        TIME.titled("seconds"),
        *(_parameter(f"config/{name}", name) for name in parameters),
        BLOCKS,
        ERROR,
        column("run", lambda row: run_path(row.run)),
    )


def _parameter(title: str, name: str) -> TrialColumn:
    """Return the column of a swept parameter.

    A trial without it has `-`, one where it is None has `None`.
    """
    return Column(
        title=title,
        value=lambda row: row.config_at_best.get(name),
        text=lambda row: word(row.config_at_best[name]) if name in row.config_at_best else NONE,
    )
