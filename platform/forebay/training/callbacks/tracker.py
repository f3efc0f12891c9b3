"""Base of all experiment trackers."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from forebay.events import EpochEnded, Evaluated, Event, Failed, Finished, Reported, RolledBack, Started, Warned
from forebay.runtime.foreign_code import begin, error_of
from forebay.storage.credentials import redact
from forebay.storage.json_file import Fact
from forebay.training.runs.control import Control
from forebay.training.runs.job_facts import SWEEP_FACT

SEND_EVERY_S = 5.0
RETRY_S = 60.0
CLOSE_S = 30.0
"""Longest wait for a tracker at the end of a run."""
MOST_UNSENT = 100_000
_MOST_TRIED = 4
_LONGEST_TOLD = 200

EndState = Literal["finished", "stopped", "failed"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run for a tracker.

    `group` is the sweep of a trial, or None. `facts` are the hyperparameters.
    """

    name: str
    group: str | None
    epochs: int
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Metrics after `step`, by names such as `step/loss`.

    `at` is in Unix seconds.
    """

    step: int
    values: Mapping[str, float]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Text about `step`.

    The verdict of a monitor, or a loss of workers.
    """

    name: str
    text: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """The steps after `step` are trained again.

    None: after the step that is reported next.
    """

    step: int | None = None


Entry: TypeAlias = StepMetrics | Note | Rewind


class Tracker(ABC):
    """Sends a run to an experiment tracker.

    It sends hyperparameters, metrics of steps and epochs, verdicts of monitors and the end.

    Laws, for every tracker:
    - A run that is resumed by name continues the same run of the tracker.
    - The end is "finished", "stopped" by somebody outside, or "failed". Losses of workers that are replaced are no
      end. Nor is the end of an attempt that a later one has taken over: it sends nothing more.
    - Credentials of this process are never sent.
    - A tracker that does not answer never ends or delays training: everything is sent by a thread. It is warned about
      once, and tried again every minute. At the end of the run it has 30 seconds.
    - What a tracker refuses while it takes others is left out, with a warning.
    """

    def __init__(self, group: str | None = None) -> None:
        self._group = group
        self._world_size: int | None = None
        self._sender: _Sender | None = None
        self._step = 0

    @abstractmethod
    def open(self, run: TrackedRun) -> None:
        """Begin or continue the run, with its hyperparameters."""

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> None:
        """Send entries, in order.

        Entries that were sent before an error are sent again.
        """

    @abstractmethod
    def close(self, state: EndState, reason: str) -> None:
        """Send the end of the run."""

    def __call__(self, event: Event, control: Control) -> None:
        match event:
            case Started():
                self._start(event, control)
            case Reported():
                self._step = event.step
                sizes = {"workers": self._world_size or control.world_size, "global_batch": event.global_batch}
                self._add_metrics(event.step, {"step": event.metrics, "run": sizes})
            case EpochEnded():
                rates = {"rows_per_s": event.rows_per_s, "wait_share": event.wait_share}
                self._add_metrics(event.step, {"epoch": {**event.metrics, **rates}})
            case Evaluated(samples=samples) if samples:  # its metrics are in its step
                text = "\n\n".join(f"{each.prompt}\n-> {each.text}" for each in samples)
                self._add(Note(name="samples", text=redact(text), step=event.step))
            case Warned():
                self._add(Note(name="warned", text=redact(event.reason), step=event.step))
            case RolledBack():
                text = f"{event.reason}; back to step {event.to_step}, {event.skipped_rows:,} rows skipped"
                self._add(Rewind(step=event.to_step), Note(name="rolled_back", text=redact(text), step=event.from_step))
            case Failed(will_retry=True):
                self._add(Note(name="lost_workers", text=redact(event.error), step=self._step), Rewind())
            case Failed() | Finished():
                self._end(event, control)

    def _start(self, event: Started, control: Control) -> None:
        self._world_size = event.world_size
        if self._sender is None:
            sweep = control.job_facts.get(SWEEP_FACT)
            group = self._group or (None if sweep is None else str(sweep))
            run = TrackedRun(name=event.name, group=group, epochs=event.epochs, facts=control.job_facts)
            self._sender = _Sender(self, run)

    def _add_metrics(self, step: int, groups: Mapping[str, Mapping[str, float]]) -> None:
        values = {f"{group}/{name}": float(value) for group, found in groups.items() for name, value in found.items()}
        self._add(StepMetrics(step=step, values=values, at=time.time()))

    def _add(self, *entries: Entry) -> None:
        if self._sender is not None:
            self._sender.add(entries)

    def _end(self, event: Failed | Finished, control: Control) -> None:
        sender, self._sender = self._sender, None
        if sender is None:
            return
        if isinstance(event, Finished):
            # Ended early by a rule of its own, such as a patience, a run is as complete as any.
            is_finished = control.how_ended(event.stopped) == "finished"
            sender.end("finished" if is_finished else "stopped", redact(event.stopped or ""))
        elif event.is_fenced:
            sender.leave()
        else:
            sender.end("failed", redact(event.error))


class _Sender:
    """Thread that sends a run's entries in batches."""

    def __init__(self, tracker: Tracker, run: TrackedRun) -> None:
        self._tracker, self._run = tracker, run
        self._title = type(tracker).__name__
        self._changed = threading.Condition()
        self._unsent: list[Entry] = []
        self._num_dropped = 0
        self._ending: tuple[EndState, str] | None = None
        self._is_open = self._is_warned = self._is_left = False
        self._told = set[tuple[str, str]]()
        self._thread = begin(threading.Thread(target=self._send_until_end, name="forebay-tracker", daemon=True))

    def add(self, entries: Sequence[Entry]) -> None:
        with self._changed:
            self._unsent.extend(entries)
            dropped = max(len(self._unsent) - MOST_UNSENT, 0)
            del self._unsent[:dropped]
            self._num_dropped += dropped

    def end(self, state: EndState, reason: str) -> None:
        """Send everything that is left, and the end."""
        with self._changed:
            self._ending = (state, reason)
            self._changed.notify_all()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning(
                "%s did not answer within %g s. The end of run %s is not in it.", self._title, CLOSE_S, self._run.name
            )

    def leave(self) -> None:
        """Send nothing more, not even the end."""
        with self._changed:
            self._is_left = True
            self._changed.notify_all()

    def _send_until_end(self) -> None:
        pause_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending is not None or self._is_left, pause_s)
                if self._is_left:
                    return
                entries, ending, self._num_dropped = list(self._unsent), self._ending, 0
            error = error_of(partial(self._send, entries, ending))
            pause_s = SEND_EVERY_S
            if error is not None:
                pause_s = RETRY_S
                self._warn(error)
            if ending is not None:
                return

    def _send(self, entries: Sequence[Entry], ending: tuple[EndState, str] | None) -> None:
        if not self._is_open:
            self._tracker.open(self._run)
            self._is_open = True
        try:
            if entries:
                self._write(entries)
        finally:
            if ending is not None:
                self._tracker.close(*ending)

    def _write(self, entries: Sequence[Entry]) -> None:
        """Write entries, each by itself if they are not taken together.

        One that is refused before and after another is taken is left out. Of a tracker that takes none, a few are
        tried.
        """
        error = error_of(partial(self._tracker.write, entries))
        if error is None:
            self._forget(len(entries))
            return
        refused: list[Entry] = []
        for number, entry in enumerate(entries, 1):
            if error_of(partial(self._tracker.write, [entry])) is not None:
                refused.append(entry)
            else:
                for each in refused:
                    if (why := error_of(partial(self._tracker.write, [each]))) is not None:
                        self._warn_of(each, why)
                self._forget(len(refused) + 1)
                refused.clear()
            if len(refused) == _MOST_TRIED or (refused and number == len(entries)):
                raise error

    def _forget(self, number: int) -> None:
        with self._changed:
            # The oldest may have been dropped since they were taken, as too many.
            dropped = min(self._num_dropped, number)
            self._num_dropped -= dropped
            del self._unsent[: number - dropped]

    def _warn_of(self, entry: Entry, error: Exception) -> None:
        kind = type(entry).__name__, getattr(entry, "name", "")
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "%s refuses a part of run %s, which is left out: %s (%s: %s).",
                self._title,
                self._run.name,
                redact(str(entry))[:_LONGEST_TOLD],
                type(error).__name__,
                redact(str(error)),
            )

    def _warn(self, error: Exception) -> None:
        if not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s cannot be reached (%s: %s). Run %s continues without it, and tries again every %g s.",
                self._title,
                type(error).__name__,
                redact(str(error)),
                self._run.name,
                RETRY_S,
            )
