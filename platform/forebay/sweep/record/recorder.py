"""The record of a sweep, filled from what Ray Tune says of its trials."""

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

from forebay.errors import WriteFailed
from forebay.storage.credentials import redact, redacted
from forebay.storage.filesystem import resolve
from forebay.sweep.layout import run_name
from forebay.sweep.record.backfill import fill_in
from forebay.sweep.record.record import Point, Record, State, TrialRecord, save_record

SAVE_EVERY_S, SAVE_FAR_EVERY_S = 1.0, 10.0
"""On this machine's storage, and where every save is a request."""

STATES: Mapping[str, State] = {
    Trial.PENDING: "pending",
    Trial.RUNNING: "running",
    Trial.PAUSED: "paused",
    Trial.TERMINATED: "finished",
    Trial.ERROR: "failed",
}

log = logging.getLogger(__name__)


class Sized(Protocol):
    """What is asked of a run under way: how many workers train now."""

    @property
    def world_size(self) -> int: ...


class SweepRecorder(tune.Callback):  # type: ignore[misc]
    """Keeps `record` up to date, and writes it to `sweep.json` in the sweep's folder `path`, and whoever `tells` are.

    `held` asks for the runs under way, by trial (`TrialWorkers.held`). A storage that fails is tried again the next
    time; only the last save, `close`, has to succeed. `clock` gives monotonic seconds; the sweep's deadline counts
    from `began` of it, if not from `setup`.
    """

    def __init__(
        self,
        record: Record,
        path: str,
        began: float | None = None,
        *,
        held: Callable[[], Mapping[str, Sized]] | None = None,
        tells: Sequence[Callable[[Record], object]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record, self._path = record, path
        self._held, self._tells, self._clock = held, tuple(tells), clock
        self._every_s = SAVE_EVERY_S if resolve(path).is_local else SAVE_FAR_EVERY_S
        self._asked_at = began
        self._began: float | None = None
        self._offset_s, self._noted_s, self._saved_s = 0.0, -math.inf, -math.inf
        self._has_met = False

    def setup(self, **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """The sweep begins, or begins again."""
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
        """An epoch of a trial has ended."""
        now_s = self._tick()
        known = self._known(trial).entered("running", now_s)
        before = known.best(self.record.mode)
        known = replace(known, run=result.get("run", known.run), blocks=result.get("blocks", known.blocks))
        if "epoch" in result:
            known = known.reached(_point(result, self.record.metric, now_s))
            # By now PBT may have given the trial another config than the one of this result.
            known = known.has_best(self.record.mode, before, _config(result.get("config", trial.config)))
        if result.get("diverged"):
            known = replace(known, error=f"{self.record.metric} is no finite number in epoch {result.get('epoch')}")
        if self._held is None:
            known = known.manned(int(result.get("workers", 0)), now_s)
        self.record.put(known)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """Called several times a second, whatever happens."""
        now_s = self._tick()
        if now_s - self._noted_s >= SAVE_EVERY_S:
            self._noted_s = now_s
            self._note(trials)
            for tell in self._tells:
                tell(self.record)
        if now_s - self._saved_s >= self._every_s:
            self._saved_s = now_s
            self._try_to_save()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """All trials have ended, or the sweep is cut off: then Tune says so of all of them, and nobody is told."""
        self._tick()
        self._note(trials)

    def close(self, stopped: str | None = None) -> None:
        """Write the record as it is, and why the sweep ended early. Raises `WriteFailed` where storage refuses."""
        self._tick()
        self.record.stopped = stopped
        now_s = self.record.elapsed_s
        for trial in list(self.record.trials.values()):
            self.record.put(trial.entered("pending", now_s) if trial.state == "running" else trial.manned(0, now_s))
        fill_in(self.record, self._path)
        try:
            save_record(self.record, self._path)
        except OSError as error:
            raise WriteFailed(
                f"the record of sweep {self.record.name!r} cannot be written to {self._path} ({redact(str(error))}). "
                "The runs of its trials are kept as far as they were stored; make room or give access, and run the "
                "same sweep again.",
                path=self._path,
            ) from redacted(error)

    def _tick(self) -> float:
        if self._began is not None:
            self.record.elapsed_s = self._offset_s + self._clock() - self._began
        return self.record.elapsed_s

    def _known(self, trial: Trial) -> TrialRecord:
        known = self.record.trials.get(trial.trial_id)
        run = run_name(self.record.name, trial.trial_id)
        # The config anew each time: PBT changes it.
        return replace(known or TrialRecord(id=trial.trial_id, run=run, config={}), config=_config(trial.config))

    def _note(self, trials: Sequence[Trial]) -> None:
        """What every trial is about, and with how many workers."""
        now_s = self.record.elapsed_s
        if not self._has_met:
            self._has_met = True
            self._forget_unknown(trials)
        held = self._held() if self._held else None
        for trial in trials:
            known = self._known(trial)
            diverged = known.error if (trial.last_result or {}).get("diverged") else None
            known = known.entered(_state(trial, known), now_s, _error(trial) or diverged)
            if held is not None and known.state == "running":
                known = known.manned(held[known.id].world_size if known.id in held else 0, now_s)
            self.record.put(known)

    def _forget_unknown(self, trials: Sequence[Trial]) -> None:
        """After a restart: trials that were drawn so shortly before a kill that Tune does not know them any more."""
        known = {trial.trial_id for trial in trials}
        for trial in list(self.record.trials.values()):
            if trial.id not in known and not trial.has_begun and not trial.has_ended:
                del self.record.trials[trial.id]

    def _try_to_save(self) -> None:
        try:
            save_record(self.record, self._path)
        except OSError as error:
            log.warning("The sweep's record cannot be written just now: %s", redact(str(error)))


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    """As a job gets it: some searchers draw NumPy's numbers and strings."""
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
    """Tune calls all that ended without an error terminated; whose run was finished, its last result tells.

    A trial that is held back before its first start is paused to Tune, too.
    """
    state = STATES[trial.status]
    if state == "finished" and not (trial.last_result or {}).get("finished", False):
        return "stopped"
    return "pending" if state == "paused" and not known.has_begun else state


def _error(trial: Trial) -> str | None:
    if trial.status != Trial.ERROR:
        return None
    error = trial.get_error()
    return "the trial ended with an error" if error is None else _last_line(str(error))


def _last_line(text: str) -> str:
    """The error itself of a traceback, without the modules before its name; what it lists below itself is indented."""
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    return re.sub(r"^(?:\w+\.)+(?=\w+: )", "", lines[-1].strip()) if lines else text.strip()
