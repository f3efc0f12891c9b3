"""All records of a run, read from its folder."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forebay.errors import InvalidOption
from forebay.events import INTERRUPTED, EpochEnded, Evaluated
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
_LOWER = re.compile(r"loss|error|brier|entropy|perplexity|ppl|nll|bce|logloss|[a-z]*m[as]p?e|wape|wql|pinball|crps")
_HIGHER = re.compile(
    r"auc|auroc|acc|accuracy|correct|ndcg|map|mrr|recall|precision|hits?|f1|r2|bleu|rouge|rewards?|wins?|score"
)


def lower_is_better(metric: str) -> bool | None:
    """Whether lower values of a metric are better, by its name.

    None if the name does not say it.

    >>> [lower_is_better(name) for name in ("validation_loss", "recall@10", "rmse", "grad_norm")]
    [True, False, True, None]
    """
    words = re.split(r"[^a-z0-9]+", metric.lower())
    if any(_LOWER.fullmatch(word) for word in words):
        return True
    return False if any(_HIGHER.fullmatch(word) for word in words) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestValue:
    """Best value of a metric, at the end of `epoch` or after `step`."""

    value: float
    step: int
    epoch: int


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

        `finished`, `stopped`, `interrupted`, `failed`, or for a run without an end `under way` or `cut off`.
        """
        if self.result is not None and self.result.is_finished:
            return "finished"
        if self.newest is None:
            return "stopped" if self.result is not None and self.result.stopped else "cut off"
        if self.newest.how == "failed" and any(each.facts.get("error") == INTERRUPTED for each in self.newest.events):
            return INTERRUPTED
        if self.newest.how:
            return self.newest.how
        age_s = self.read_at - (self.newest.saved_at or self.newest.at + self.newest.last_s)
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

    def best(self, metric: str) -> BestValue | None:
        """Best value of a metric.

        None with fewer than two values, or if its name does not say which is better.
        """
        lower = lower_is_better(metric)
        reports: list[EpochEnded | Evaluated] = [*self.epochs, *(self.result.evaluations if self.result else ())]
        found = {each.step: each for each in reports if math.isfinite(each.metrics.get(metric, math.nan))}
        if lower is None or len(found) < 2:
            return None
        best = min(found.values(), key=lambda each: ((1 if lower else -1) * each.metrics[metric], each.step))
        return BestValue(value=best.metrics[metric], step=best.step, epoch=best.epoch)

    @property
    def step_times(self) -> tuple[list[float], list[float]]:
        """Return steps, ascending, and the running time of each.

        Of a step that was trained again, the last time counts. Empty without a timeline.
        """
        steps: list[float] = []
        times: list[float] = []
        for at_s, point in self.progress():
            while steps and steps[-1] >= point.step:
                steps.pop()
                times.pop()
            steps.append(point.step)
            times.append(at_s)
        return steps, times

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
    def gpu_share(self) -> float | None:
        """Return the share of time that GPUs were busy.

        A mean over the recorded times and nodes. None without GPUs.
        """
        points = (each for start in self.timeline.starts for node in start.use.values() for each in node)
        found = [point.use.gpu for point in points if math.isfinite(point.use.gpu)]
        return sum(found) / len(found) if found else None

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
