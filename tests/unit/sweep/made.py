"""Synthetic records of sweeps for the tests of this folder."""

from __future__ import annotations

from typing import Any

from forebay.sweep.record.record import Point, Record, State, TrialRecord


def trial(name: str, *values: float | None, state: State = "running", workers: int = 1, **config: Any) -> TrialRecord:
    """A trial with an epoch every ten seconds."""
    made = TrialRecord(id=name, run=f"ctr.{name}", config=config).with_state("running", 0.0).with_workers(workers, 2.0)
    for number, value in enumerate(values, 1):
        made = made.with_point(Point(at_s=10.0 * number, epoch=number, value=value, workers=workers, rows_per_s=2000.0))
    return made.with_state(state, 10.0 * len(values) + 1)


def record(*trials: TrialRecord, **facts: Any) -> Record:
    made = Record(**{"name": "ctr", "metric": "auc", "mode": "max", "elapsed_s": 60.0, **facts})
    for each in trials:
        made.put(each)
    return made
