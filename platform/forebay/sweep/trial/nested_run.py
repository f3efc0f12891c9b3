"""Run of one trial, in its own thread.

It pauses at the end of every epoch until it is resumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from forebay.events import EpochEnded, Event, Failed, Reported, Resized, Started
from forebay.runtime.foreign_code import OutcomeThread, begin
from forebay.training.driver.driver import run
from forebay.training.job.job import Job
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import Result

FIRST_STEP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch that has just ended, with its timing.

    `seconds` is its duration without waiting for the sweep. `startup_s` is from the start of the run to its first step.
    `resize_s` is the newest gap from the last step before a resize to the first one after it.
    """

    ended: EpochEnded
    workers: int
    seconds: float
    startup_s: float
    resize_s: float | None = None


class Clock:
    """Timing of a run, from its events."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.startup_s: float | None = None
        self.resize_s: float | None = None
        self.is_training = self.has_stepped = False
        self.workers = 0
        self._resize_since: float | None = None
        self._step_at = self.began

    def see(self, event: Event) -> None:
        """Update the timing from one event."""
        self.last = time.monotonic()
        match event:
            case Started():
                self.workers, self.is_training, self.has_stepped = event.world_size, True, False
            case Failed():
                # Workers send no events until they are replaced.
                self.is_training = False
            case Resized():
                self._resize_since = self._step_at
            case Reported():
                self._see_step()

    def _see_step(self) -> None:
        self._step_at, self.has_stepped = self.last, True
        if self.startup_s is None:
            self.startup_s = self.last - self.began
        if self._resize_since is not None:
            self.resize_s, self._resize_since = self.last - self._resize_since, None


class NestedRun:
    """Thread that trains a job epoch by epoch.

    It runs `run(job, driver, callbacks)` and hands its epochs to the caller one by one.

    At the end of every epoch but the last, the run waits in its callbacks for `resume` or `stop`. If the caller decides
    to stop after an epoch, the newest checkpoint of the run is the one that ends this epoch.
    """

    def __init__(self, job: Job, driver: str, callbacks: Sequence[Callback] = ()) -> None:
        self.job = job
        self._driver = driver
        # Last, so that requests of the other callbacks are known when this one waits.
        self._callbacks = [*callbacks, self._on_event]
        self._changed = threading.Condition()
        self._clock = Clock()
        self._control: Control | None = None
        self._epoch: Epoch | None = None
        self._stop: str | None = None
        self._is_paused = False
        self._paused_s = 0.0
        self._thread = begin(OutcomeThread(partial(run, job, driver, self._callbacks), "forebay-trial", self._notify))

    @property
    def result(self) -> Result | None:
        """Result of the run. None until it has ended."""
        return None if self._thread.outcome is None else self._thread.outcome.value

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self._thread.is_alive()

    @property
    def first_epoch(self) -> int:
        """Epoch that the run began with, from 0. It is 0 before its first event."""
        with self._changed:
            return 0 if self._control is None else self._control.first_epoch

    @property
    def paused_at(self) -> EpochEnded | None:
        """Return the epoch after which the run is paused, or None."""
        with self._changed:
            return self._epoch.ended if self._is_paused and self._epoch is not None else None

    def is_hung(self, timeout_s: float) -> bool:
        """Return whether no event has arrived for `timeout_s`.

        In seconds, from workers that should train.

        Their first step may take `FIRST_STEP_S` longer: code is compiled, and files are opened.
        """
        with self._changed:
            clock = self._clock
            if not clock.is_training or self._is_paused or not self._is_under_way:
                return False
            return time.monotonic() - clock.last > timeout_s + (0.0 if clock.has_stepped else FIRST_STEP_S)

    def next_epoch(self, wait_s: float) -> Epoch | None:
        """Wait for the next ended epoch.

        None if there is none within `wait_s` seconds, or if the run is over.

        Raises the exception of the run.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._epoch is not None or not self._is_under_way, wait_s)
            if self._thread.error is not None:
                raise self._thread.error
            epoch = self._epoch
            if not self._is_paused:
                self._epoch = None
            return epoch

    def resume(self, after: int) -> None:
        """Resume a run that is paused at an epoch's end.

        At the end of epoch `after` or an earlier one.
        """
        with self._changed:
            if self._epoch is not None and self._is_paused and self._epoch.ended.epoch <= after:
                self._epoch, self._is_paused = None, False
                self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Make the run save a checkpoint and end."""
        with self._changed:
            self._stop = self._stop or reason
            if self._control is not None:
                self._control.obey_stop(reason)
            self._changed.notify_all()

    def join(self, wait_s: float | None = None) -> bool:
        """Wait for the end of the run.

        Returns whether it has ended.
        """
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    @property
    def _is_under_way(self) -> bool:
        return self._thread.outcome is None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_event(self, event: Event, control: Control) -> None:
        with self._changed:
            self._control = control
            if self._stop is not None:
                control.obey_stop(self._stop)
            self._clock.see(event)
            if not isinstance(event, EpochEnded):
                return
            self._epoch = self._measure(event)
            self._is_paused = event.epoch + 1 < control.job_epochs
            self._changed.notify_all()
            since = time.monotonic()
            self._changed.wait_for(lambda: not self._is_paused or self._stop is not None)
            self._is_paused = False
            self._paused_s += time.monotonic() - since
            self._clock.last = time.monotonic()

    def _measure(self, ended: EpochEnded) -> Epoch:
        # Workers count the wait at the end of an epoch in the next one.
        seconds, self._paused_s = max(ended.seconds - self._paused_s, 1e-9), 0.0
        return Epoch(
            ended=ended,
            workers=self._clock.workers,
            seconds=seconds,
            startup_s=self._clock.startup_s or 0.0,
            resize_s=self._clock.resize_s,
        )
