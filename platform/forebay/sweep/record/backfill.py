"""Trained epochs that are missing in the record.

They ended while the sweep ended or was killed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from forebay.errors import ForebayError
from forebay.events import EpochEnded
from forebay.storage.filesystem import below
from forebay.sweep.layout import RUNS, generation_of
from forebay.sweep.record.record import Point, Record, TrialRecord
from forebay.training.runs.result import load_result
from forebay.training.runs.run_folder import RunFolder


def backfill(record: Record, path: str) -> None:
    """Add missing epochs to `record`.

    From the results of the runs in the sweep's folder `path`.
    """
    runs = below(path, RUNS)
    for trial in list(record.trials.values()):
        if not trial.has_started:
            continue
        if trial.state == "finished" and len(trial.points) == trial.epochs:
            continue
        try:
            result = load_result(RunFolder.below(runs, trial.run))
        except (OSError, ForebayError):  # an unreadable result adds nothing
            continue
        if result is not None:
            record.put(_filled(trial, result.epochs, record, generation_of(trial.run, record.name)))


def _filled(trial: TrialRecord, epochs: Sequence[EpochEnded], record: Record, generation: int) -> TrialRecord:
    known = {point.epoch for point in trial.points}
    # A fork's epochs before its own first one belong to another trial.
    after = trial.epochs if generation else 0
    missed = [_point(ended, trial, record) for ended in epochs if ended.epoch >= after and ended.epoch + 1 not in known]
    if not missed:
        return trial
    points = (*trial.points, *missed)
    filled = replace(trial, points=points if generation else tuple(sorted(points, key=lambda point: point.epoch)))
    return filled.with_best(record.mode, trial.best(record.mode), trial.config)


def _point(ended: EpochEnded, trial: TrialRecord, record: Record) -> Point:
    """Return the point of a missing epoch.

    Before the next known one, and before the trial released its workers.
    """
    later = [point for point in trial.points if point.epoch > ended.epoch + 1]
    released_s = trial.worker_counts[-1].at_s if trial.worker_counts and not trial.workers else record.elapsed_s
    count = [count.workers for count in trial.worker_counts if count.workers]
    value = ended.metrics.get(record.metric, math.nan)
    return Point(
        at_s=later[0].at_s if later else released_s,
        epoch=ended.epoch + 1,
        value=value if math.isfinite(value) else None,
        workers=later[0].workers if later else (count or [0])[-1],
        rows_per_s=ended.rows / ended.seconds if ended.seconds > 0 else 0.0,
    )
