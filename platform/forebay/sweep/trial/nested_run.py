"""The run of one trial: it trains in a thread of its own, and stands still at the end of every epoch until told."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.driver.driver import run
from forebay.events import EpochEnded, Event, Failed, Reported, Resized, Started
from forebay.job.job import Job
from forebay.runs.callback import Callback
from forebay.runs.control import Control
from forebay.runs.result import Result

FIRST_STEP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch that has just ended, and how it went.

    `seconds` is what it took without waiting for the sweep. `startup_s` is from the start of the run to its first step;
    `resize_s` the newest gap, from the last step before a change of the world's size to the first one after it.
    """

    ended: EpochEnded
    workers: int
    seconds: float
    startup_s: float
    resize_s: float | None = None


class Clock:
    """What the events of a run tell about its time."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.startup_s: float | None = None
        self.resize_s: float | None = None
        self.is_training = self.has_stepped = False
        self.workers = 0
        self._stood_since: float | None = None
        self._step_at = self.began

    def see(self, event: Event) -> None:
        """Take one event, as it comes."""
        self.last = time.monotonic()
        match event:
            case Started():
                self.workers, self.is_training, self.has_stepped = event.world_size, True, False
            case Failed():
                # Until its workers are replaced there is nobody to hear of.
                self.is_training = False
            case Resized():
                self._stood_since = self._step_at
            case Reported():
                self._see_step()

    def _see_step(self) -> None:
        self._step_at, self.has_stepped = self.last, True
        if self.startup_s is None:
            self.startup_s = self.last - self.began
        if self._stood_since is not None:
            self.resize_s, self._stood_since = self.last - self._stood_since, None


class NestedRun:
    """`run(job, driver, callbacks)` beside the caller, who asks for its epochs one by one.

    At the end of an epoch that is not the last, the run waits in its callbacks for `go_on` or `stop`: whoever looks at
    the epoch and decides to stop has a run whose newest commit is the one that ends it.
    """

    def __init__(self, job: Job, driver: str, callbacks: Sequence[Callback] = ()) -> None:
        self.job = job
        self.result: Result | None = None
        self._driver = driver
        # Last, so that what the other callbacks ask for is known when this one waits.
        self._callbacks = [*callbacks, self._hear]
        self._changed = threading.Condition()
        self._clock = Clock()
        self._control: Control | None = None
        self._epoch: Epoch | None = None
        self._error: BaseException | None = None
        self._stop: str | None = None
        self._is_standing = False
        self._stood_s = 0.0
        self._thread = threading.Thread(target=self._run, name="forebay-trial", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not come to its end."""
        return self._thread.is_alive()

    @property
    def standing_at(self) -> EpochEnded | None:
        """The epoch at whose end the run stands still."""
        with self._changed:
            return self._epoch.ended if self._is_standing and self._epoch is not None else None

    def is_hung(self, timeout_s: float) -> bool:
        """Whether its workers, who should be training, have not been heard of for `timeout_s` seconds.

        Their first step may take `FIRST_STEP_S` longer: code is compiled, and files are opened.
        """
        with self._changed:
            clock = self._clock
            if not clock.is_training or self._is_standing or not self._is_under_way:
                return False
            return time.monotonic() - clock.last > timeout_s + (0.0 if clock.has_stepped else FIRST_STEP_S)

    def next_epoch(self, wait_s: float) -> Epoch | None:
        """The next epoch that has ended; None where there was none in `wait_s` seconds, or where the run is over.

        Raises what the run raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._epoch is not None or not self._is_under_way, wait_s)
            if self._error is not None:
                raise self._error
            epoch = self._epoch
            if not self._is_standing:
                self._epoch = None
            return epoch

    def go_on(self, after: int) -> None:
        """Let a run that stands still at the end of epoch `after`, or of an earlier one, train on."""
        with self._changed:
            if self._epoch is not None and self._is_standing and self._epoch.ended.epoch <= after:
                self._epoch, self._is_standing = None, False
                self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Have the run commit and end."""
        with self._changed:
            self._stop = self._stop or reason
            if self._control is not None:
                self._control.stop(reason)
            self._changed.notify_all()

    def join(self, wait_s: float | None = None) -> bool:
        """Wait for the run to end; whether it has."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    @property
    def _is_under_way(self) -> bool:
        return self.result is None and self._error is None

    def _run(self) -> None:
        try:
            result = run(self.job, self._driver, self._callbacks)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the epochs are asked for
            with self._changed:
                self._error = error
                self._changed.notify_all()
        else:
            with self._changed:
                self.result = result
                self._changed.notify_all()

    def _hear(self, event: Event, control: Control) -> None:
        with self._changed:
            self._control = control
            if self._stop is not None:
                control.stop(self._stop)
            self._clock.see(event)
            if not isinstance(event, EpochEnded):
                return
            self._epoch = self._account(event)
            self._is_standing = event.epoch + 1 < control.job_epochs
            self._changed.notify_all()
            since = time.monotonic()
            self._changed.wait_for(lambda: not self._is_standing or self._stop is not None)
            self._is_standing = False
            self._stood_s += time.monotonic() - since
            self._clock.last = time.monotonic()

    def _account(self, ended: EpochEnded) -> Epoch:
        # Workers book the wait at the end of an epoch on the next one.
        seconds, self._stood_s = max(ended.seconds - self._stood_s, 1e-9), 0.0
        return Epoch(
            ended=ended,
            workers=self._clock.workers,
            seconds=seconds,
            startup_s=self._clock.startup_s or 0.0,
            resize_s=self._clock.resize_s,
        )
