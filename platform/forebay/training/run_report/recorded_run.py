"""All records of a run, read from its folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forebay.errors import InvalidOption
from forebay.events import EpochEnded
from forebay.training.runs.result import Result, load_result
from forebay.training.runs.run_folder import RunFolder
from forebay.training.runs.timeline.timeline import (
    ProgressPoint,
    RunStart,
    StartOrigin,
    TimedEvent,
    Timeline,
    load_timeline,
)

RECENT_S = 120.0
"""Age of the last record up to which a run without an end may be running. Drivers record every 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Result and timeline of a run.

    A run that was killed before its first epoch ended has no result.
    """

    name: str
    path: str
    result: Result | None = None
    timeline: Timeline = field(default_factory=Timeline)
    read_at: float = 0.0

    @property
    def epochs(self) -> tuple[EpochEnded, ...]:
        """Completed epochs."""
        return self.result.epochs if self.result else ()

    @property
    def newest(self) -> RunStart | None:
        """Newest start, or None if no timeline was recorded."""
        return self.timeline.starts[-1] if self.timeline.starts else None

    @property
    def origin(self) -> StartOrigin:
        """StartOrigin of the newest start."""
        return self.newest.origin if self.newest else StartOrigin()

    @property
    def state(self) -> str:
        """Return the state of the run.

        `finished`, `stopped`, `failed`, or for a run without an end `under way` or `cut off`.
        """
        if self.result is not None and self.result.is_finished:
            return "finished"
        if self.newest is None:
            return "stopped" if self.result is not None and self.result.stopped else "cut off"
        if self.newest.how:
            return self.newest.how
        age_s = self.read_at - self.newest.at - self.newest.last_s
        return "under way" if age_s < RECENT_S else "cut off"

    @property
    def seconds(self) -> float:
        """Return the running time of all starts.

        Without a timeline, the time of its epochs.
        """
        return sum(start.last_s for start in self.timeline.starts) or sum(epoch.seconds for epoch in self.epochs)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last completed epoch."""
        return self.result.metrics if self.result else {}

    @property
    def rows_per_s(self) -> float | None:
        """Return the rows per second of the completed epochs.

        None without any.
        """
        seconds = sum(epoch.seconds for epoch in self.epochs)
        return sum(epoch.rows for epoch in self.epochs) / seconds if seconds else None

    @property
    def wait_share(self) -> float | None:
        """Return the share of time that training waited for data.

        Of the completed epochs.
        """
        seconds = sum(epoch.seconds for epoch in self.epochs)
        return sum(epoch.wait_s for epoch in self.epochs) / seconds if seconds else None

    @property
    def hit_share(self) -> float | None:
        """Return the share of blocks from the cache.

        None if no block was counted.
        """
        hits = self.counted("hits")
        blocks = hits + self.counted("stores") + self.counted("bypasses")
        return hits / blocks if blocks else None

    def counted(self, counter: str) -> float:
        """Sum of a counter of `forebay.runtime.metrics` over all epochs."""
        return sum(epoch.counters.get(counter, 0.0) for epoch in self.epochs)

    def num_events(self, kind: str) -> int:
        """Number of recorded events of a kind."""
        return sum(event.kind == kind for _, event in self.events())

    def events(self) -> Iterator[tuple[float, TimedEvent]]:
        """Return each event with its running time in seconds.

        Starts follow each other without a gap.
        """
        for begin_s, start in self.starts():
            yield from ((begin_s + event.at_s, event) for event in start.events)

    def progress(self) -> Iterator[tuple[float, ProgressPoint]]:
        """Return each point of progress with its running time.

        In seconds.
        """
        for begin_s, start in self.starts():
            yield from ((begin_s + point.at_s, point) for point in start.progress)

    def starts(self) -> Iterator[tuple[float, RunStart]]:
        """Return each start with its running time."""
        begin_s = 0.0
        for start in self.timeline.starts:
            yield begin_s, start
            begin_s += start.last_s


def recorded(result: Result) -> RecordedRun:
    """Return the run of `result`, with its timeline."""
    timeline = load_timeline(result.path) or Timeline()
    return RecordedRun(name=result.name, path=result.path, result=result, timeline=timeline, read_at=time.time())


def load_run(run: str | RunFolder) -> RecordedRun:
    """Run in a folder, ended or not.

    Raises `InvalidOption` if no run was started there, and for files of another version.
    """
    folder = RunFolder.at(run)
    result, timeline = load_result(folder), load_timeline(folder)
    if result is None and timeline is None:
        raise InvalidOption(
            f"{folder.uri} is not the folder of a run or a sweep: it has no result.json, timeline.json or sweep.json. "
            "Give the folder that `forebay run` printed, which is the job's storage and the run's name.",
            path=folder.uri,
        )
    name = result.name if result else folder.name
    return RecordedRun(name=name, path=folder.uri, result=result, timeline=timeline or Timeline(), read_at=time.time())
