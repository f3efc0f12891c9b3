"""Tune callback that fills the record of a sweep."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from ray import tune
from ray.tune.experiment import Trial

from forebay.storage.atomic import ADVICE, write_failed
from forebay.storage.credentials import redact, redacted
from forebay.storage.filesystem import resolve
from forebay.sweep.layout import generation_of, run_name
from forebay.sweep.record.backfill import backfill
from forebay.sweep.record.record import Point, Record, State, TrialRecord, inexact_names, save_record

SAVE_EVERY_S, SAVE_FAR_EVERY_S = 1.0, 10.0
"""Seconds between saves: on local storage, and on storage where every save is a request."""

STATES: Mapping[str, State] = {
    Trial.PENDING: "pending",
    Trial.RUNNING: "running",
    Trial.PAUSED: "paused",
    Trial.TERMINATED: "finished",
    Trial.ERROR: "failed",
}

log = logging.getLogger(__name__)


class HasWorldSize(Protocol):
    """Running run with its current number of workers."""

    @property
    def world_size(self) -> int: ...


class SweepRecorder(tune.Callback):  # type: ignore[misc]
    """Tune callback that keeps `record` up to date.

    It saves the record and calls `listeners`.

    The record is saved to `sweep.json` in the folder `path`. A failed save is repeated at the next turn. Only the last
    save, in `close`, must succeed. `allocations` returns the running runs by trial (`TrialWorkers.allocations`).
    `clock` returns monotonic seconds. The deadline counts from `began` on that clock, or else from `setup`.
    """

    def __init__(
        self,
        record: Record,
        path: str,
        began: float | None = None,
        *,
        allocations: Callable[[], Mapping[str, HasWorldSize]] | None = None,
        listeners: Sequence[Callable[[Record], object]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record, self._path = record, path
        self._allocations, self._listeners, self._clock = allocations, tuple(listeners), clock
        self._every_s = SAVE_EVERY_S if resolve(path).is_local else SAVE_FAR_EVERY_S
        self._asked_at = began
        self._began: float | None = None
        self._offset_s, self._noted_s, self._saved_s = 0.0, -math.inf, -math.inf

    def setup(self, **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """Start or resume the record."""
        self._began, self._offset_s = self._clock(), self.record.elapsed_s
        late_s = 0.0 if self._asked_at is None else self._began - self._asked_at
        self.record.begin(time.time(), late_s)

    def on_trial_result(
        self,
        iteration: int,  # noqa: ARG002 - Tune's signature
        trials: list[Trial],  # noqa: ARG002
        trial: Trial,
        result: dict[str, Any],
        **info: Any,  # noqa: ARG002
    ) -> None:
        """Record the end of an epoch of a trial."""
        now_s = self._tick()
        known = self._known(trial).with_state("running", now_s)
        before = known.best(self.record.mode)
        known = replace(known, run=result.get("run", known.run), blocks=result.get("blocks", known.blocks))
        if "epoch" in result:
            is_fork = generation_of(known.run, self.record.name) > 0
            known = known.with_point(_point(result, self.record.metric, now_s), is_fork=is_fork)
            # PBT may have changed the trial's config since this result.
            known = known.with_best(self.record.mode, before, _config(result.get("config", trial.config)))
        if result.get("diverged"):
            why = result.get("why") or f"{self.record.metric} is not finite in epoch {result.get('epoch')}"
            known = replace(known, error=why)
        if self._allocations is None:
            known = known.with_workers(int(result.get("workers", 0)), now_s)
        self.record.put(known)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """Update the record.

        Tune calls it several times a second.
        """
        now_s = self._tick()
        if now_s - self._noted_s >= SAVE_EVERY_S:
            self._noted_s = now_s
            self._note(trials)
            for tell in self._listeners:
                tell(self.record)
        if now_s - self._saved_s >= self._every_s:
            self._saved_s = now_s
            self._try_to_save()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """Record the end of the sweep.

        Tune also calls it for an interrupted sweep, without further trial callbacks.
        """
        self._tick()
        self._note(trials)

    def close(self, stopped: str | None = None) -> None:
        """Write the final record, with the reason of an early end.

        Raises `WriteFailed` if storage refuses.
        """
        self._tick()
        self.record.stopped = stopped
        now_s = self.record.elapsed_s
        for trial in list(self.record.trials.values()):
            self.record.put(
                trial.with_state("pending", now_s) if trial.state == "running" else trial.with_workers(0, now_s)
            )
        backfill(self.record, self._path)
        try:
            save_record(self.record, self._path)
        except OSError as error:
            what = f"the record of sweep {self.record.name!r}"
            advice = f"{ADVICE} The stored runs of its trials are kept: run the same sweep again."
            raise write_failed(what, self._path, error, advice) from redacted(error)

    def _tick(self) -> float:
        if self._began is not None:
            self.record.elapsed_s = self._offset_s + self._clock() - self._began
        return self.record.elapsed_s

    def _known(self, trial: Trial) -> TrialRecord:
        known = self.record.trials.get(trial.trial_id)
        run = run_name(self.record.name, trial.trial_id)
        # PBT changes the config during the sweep.
        config = _config(trial.config)
        known = known or TrialRecord(id=trial.trial_id, run=run, config={})
        return replace(known, config=config, inexact=inexact_names(config))

    def _note(self, trials: Sequence[Trial]) -> None:
        """Record the state and the workers of every trial."""
        now_s = self.record.elapsed_s
        allocations = self._allocations() if self._allocations else None
        for trial in trials:
            known = self._known(trial)
            diverged = known.error if (trial.last_result or {}).get("diverged") else None
            known = known.with_state(_state(trial, known), now_s, _error(trial) or diverged)
            if allocations is not None and known.state == "running":
                known = known.with_workers(allocations[known.id].world_size if known.id in allocations else 0, now_s)
            self.record.put(known)

    def _try_to_save(self) -> None:
        try:
            save_record(self.record, self._path)
        except OSError as error:
            log.warning("The sweep's record cannot be written at the moment: %s", redact(str(error)))


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as a job receives it.

    Some searchers draw NumPy scalars.
    """
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}


def _point(result: Mapping[str, Any], metric: str, now_s: float) -> Point:
    value = result.get(metric)
    is_number = isinstance(value, int | float) and math.isfinite(value) and not result.get("diverged")
    return Point(
        at_s=now_s,
        epoch=int(result["epoch"]),
        value=float(value) if is_number and value is not None else None,
        workers=int(result.get("workers", 0)),
        rows_per_s=float(result.get("rows_per_s") or 0.0),
    )


def _state(trial: Trial, known: TrialRecord) -> State:
    """Return the state of a trial.

    Tune's TERMINATED covers all ends without an error: the last result identifies finished trials.

    Tune's PAUSED includes trials that are held back before their first start.
    """
    state = STATES[trial.status]
    if state == "finished" and not (trial.last_result or {}).get("finished", False):
        return "stopped"
    return "pending" if state == "paused" and not known.has_started else state


def _error(trial: Trial) -> str | None:
    if trial.status != Trial.ERROR:
        return None
    error = trial.get_error()
    return "the trial ended with an error" if error is None else redact(_last_line(str(error)))


def _last_line(text: str) -> str:
    """Return the error line of a traceback.

    Without module names. Indented lines after it belong to its message.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    return re.sub(r"^(?:\w+\.)+(?=\w+: )", "", lines[-1].strip()) if lines else text.strip()
