"""Recorder of a start's events and progress.

Saved now and then, with their times.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from forebay.events import BatchesCut, Evaluated, Event, Failed, Finished, MachineUse, NodeUsed, Reported, Started
from forebay.storage.credentials import redact
from forebay.storage.json_file import Fact
from forebay.training.runs.run_folder import RunFolder
from forebay.training.runs.timeline.timeline import (
    ProgressPoint,
    RunStart,
    TimedEvent,
    Timeline,
    UsePoint,
    recorded_names,
    save_timeline,
)

MAX_PROGRESS, MAX_EVENTS, MAX_CUTS = 512, 512, 4096
MAX_NODES, MAX_USE = 5, 128
"""Nodes whose use is recorded, and points of each. A page has five colors of curves."""

log = logging.getLogger(__name__)


class TimelineRecorder:
    """Adds a start and its events to a timeline.

    Any thread may save.
    """

    def __init__(
        self,
        run: str | RunFolder,
        start: RunStart,
        earlier: Timeline | None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._earlier = RunFolder.at(run), earlier or Timeline()
        self._start, self._clock, self._began = start, clock, clock()
        self._wall_clock = wall_clock
        self._events: list[TimedEvent] = []
        self._progress: list[ProgressPoint] = []
        self._cuts: list[BatchesCut] = []
        self._use: dict[str, list[UsePoint]] = {}
        self._spacing_s, self._omitted, self._world_size = 0.0, 0, 0
        self._newest: ProgressPoint | None = None
        self._is_waiting = False
        self._lock, self._saving = threading.Lock(), threading.Lock()

    def record(self, event: Event) -> None:
        """Record one event at the present time."""
        with self._lock:
            at_s = self._clock() - self._began
            if isinstance(event, Reported):
                self._record_step(event, at_s)
                return
            if isinstance(event, NodeUsed):
                self._record_use(event, at_s)
                return
            if isinstance(event, Evaluated):  # the result has it
                return
            if isinstance(event, BatchesCut):
                self._record_cut(event)
                return
            if isinstance(event, Started):
                self._world_size, self._is_waiting = event.world_size, True
            self._add(TimedEvent(at_s=round(at_s, 3), kind=type(event).__name__, facts=_facts(event)))
            if isinstance(event, Finished) or (isinstance(event, Failed) and not event.will_retry):
                how = "failed" if isinstance(event, Failed) else "stopped" if event.stopped else "finished"
                self._start = replace(self._start, how=how)

    def set_config(self, name: str, value: Fact) -> None:
        """Set a fact of the job that is known after its start."""
        with self._lock:
            origin = self._start.origin
            self._start = replace(self._start, origin=replace(origin, config={**origin.config, name: value}))

    def save(self) -> None:
        """Write the timeline.

        A refusal of storage is only logged, so that the run goes on.
        """
        with self._saving:
            with self._lock:  # Not during the request: events would wait for a storage that does not answer.
                timeline = self.timeline
            try:
                save_timeline(timeline, self._folder)
            except OSError as error:
                log.warning("The timeline of %s could not be saved (%s).", self._folder.uri, redact(str(error)))

    @property
    def timeline(self) -> Timeline:
        """All starts, with the present one."""
        progress = self._progress
        if self._newest is not None and progress[-1] != self._newest:
            progress = [*progress, self._newest]
        last_s = round(self._clock() - self._began, 3)
        events = tuple(self._events)
        start = replace(
            self._start,
            events=events,
            progress=tuple(progress),
            last_s=last_s,
            saved_at=round(self._wall_clock(), 3),
            omitted=self._omitted,
            cuts=tuple(self._cuts),
            use={node: tuple(points) for node, points in self._use.items()},
        )
        return self._earlier.with_start(start)

    def _record_step(self, event: Reported, at_s: float) -> None:
        point = ProgressPoint(
            at_s=round(at_s, 3),
            step=event.step,
            rows=event.rows,
            wait_s=round(event.wait_s, 3),
            world_size=self._world_size,
            global_batch=event.global_batch,
            loss=event.metrics.get("loss"),
        )
        if self._is_waiting:
            self._close_gap(point)
        self._newest = point
        last = self._progress[-1] if self._progress else None
        if last is None or (last != point and at_s - last.at_s >= self._spacing_s):
            self._progress.append(point)
        if len(self._progress) > MAX_PROGRESS:
            self._progress = self._progress[::2]
            self._spacing_s = 2 * (point.at_s - self._progress[0].at_s) / MAX_PROGRESS

    def _record_cut(self, cut: BatchesCut) -> None:
        while self._cuts and self._cuts[-1].step >= cut.step:
            self._cuts.pop()
        self._cuts.append(cut)
        if len(self._cuts) > MAX_CUTS:
            unknown = replace(self._cuts[0], batches=0)
            self._cuts = [unknown, *self._cuts[MAX_CUTS // 2 :]]

    def _record_use(self, event: NodeUsed, at_s: float) -> None:
        if event.node not in self._use and len(self._use) >= MAX_NODES:
            return
        points = self._use.setdefault(event.node, [])
        spacing_s = 1.5 * at_s / MAX_USE
        if len(points) > 1 and at_s - points[-2].at_s < spacing_s:
            points.pop()  # the newest stays, and earlier ones are far enough apart
        points.append(UsePoint(round(at_s, 1), MachineUse(*(float(f"{each:.3g}") for each in event.use))))
        if len(points) > MAX_USE:
            del points[1:-1:2]

    def _close_gap(self, point: ProgressPoint) -> None:
        """Add the cost of an interruption to the newest `Started`.

        How long no step was reported, and how many steps are trained again.
        """
        self._is_waiting = False
        before = self._newest
        gap_s = point.at_s - (before.at_s if before else 0.0)
        repeated = max((before.step if before else self._earlier.last_step) - point.step + 1, 0)
        # Both points of a gap are kept, so that curves show it.
        self._progress += [before, point] if before and self._progress[-1] != before else [point]
        for index in range(len(self._events) - 1, -1, -1):
            if self._events[index].kind == Started.__name__:
                self._events[index] = self._events[index].with_facts(gap_s=round(gap_s, 3), repeated_steps=repeated)
                return

    def _add(self, event: TimedEvent) -> None:
        if len(self._events) < MAX_EVENTS or event.kind in (Finished.__name__, Failed.__name__):
            self._events.append(event)
        else:
            self._omitted += 1


def _facts(event: Event) -> dict[str, Any]:
    found = {name: getattr(event, name) for name in recorded_names(type(event))}
    return {name: redact(value) if isinstance(value, str) else value for name, value in found.items()}
