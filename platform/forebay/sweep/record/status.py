"""Status of a running sweep, for `forebay jobs --ray`."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.sweep.record.record import Mode, Record, State, TrialRecord, active_first


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStatus:
    """State of a trial at one moment.

    `value` is its newest value, `best` its best one.
    """

    id: str
    run: str
    state: State
    epochs: int
    value: float | None
    best: float | None
    workers: int
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStatus:
    """State of a running sweep at one moment.

    Running trials first, then waiting ones, the best of each first.

    `started_at` is Unix seconds; `stopping` is the reason of a requested stop.
    """

    name: str
    metric: str
    mode: Mode
    best: float | None
    best_trial: str | None
    deadline_left_s: float | None
    elapsed_s: float
    started_at: float
    slots: int | None
    slots_in_use: int
    path: str
    trials: tuple[TrialStatus, ...]
    stopping: str | None = None

    @classmethod
    def of(cls, record: Record, path: str) -> SweepStatus:
        """Return the status of a sweep.

        From its record, in the folder `path`.
        """
        best = record.best
        return cls(
            name=record.name,
            metric=record.metric,
            mode=record.mode,
            best=record.best_value,
            best_trial=best.id if best else None,
            deadline_left_s=record.deadline_left_s,
            elapsed_s=record.elapsed_s,
            started_at=record.started_at,
            slots=record.slots,
            slots_in_use=record.slots_in_use,
            path=path,
            trials=tuple(_trial(record, each) for each in active_first(record)),
        )


def _trial(record: Record, trial: TrialRecord) -> TrialStatus:
    best, last = trial.best(record.mode), trial.last
    return TrialStatus(
        id=trial.id,
        run=trial.run,
        state=trial.state,
        epochs=trial.epochs,
        value=last.value if last else None,
        best=best.value if best else None,
        workers=trial.workers,
        seconds=trial.seconds(record.elapsed_s),
        error=trial.error,
    )
