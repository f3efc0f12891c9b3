"""Record of a sweep's trials, saved as `sweep.json`.

Configs, states and results over time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from forebay.runtime.declared_types import require_types
from forebay.storage.json_file import from_json, read_json_file, to_json, write_json_file

FILE_NAME = "sweep.json"
VERSION = 3

Mode = Literal["min", "max"]
State = Literal["pending", "running", "paused", "finished", "stopped", "failed"]
"""State of a trial.

- pending: not started, or waiting to resume
- running: training
- paused: paused by the scheduler
- finished: all epochs trained
- stopped: stopped early by the scheduler, the deadline or a user
- failed: ended by an error
"""
ENDED = frozenset[State](("finished", "stopped", "failed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """State of a trial at the end of an epoch.

    `at_s` is seconds of the sweep. `epoch` counts from 1. `value` is the metric, None if it was not finite.
    """

    at_s: float
    epoch: int
    value: float | None
    workers: int
    rows_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCount:
    """Number of workers from `at_s` on.

    In seconds of the sweep.
    """

    at_s: float
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Record of one trial.

    `run` names its run. `worker_counts` has one entry per change of its world size.

    `best_run` and `best_config` belong to its best value. None means the current ones: a trial may fork from another
    trial's checkpoint with another config.

    `blocks` is the cache's name for its data: empty without a cache, None before its first epoch has ended.

    `is_cut` tells that the end of the sweep stopped it: it goes on with the next start. `inexact` names the parameters
    whose values JSON does not hold, such as tuples and objects.

    `running_s` is the running time before `running_since_s`, the start of the current period. `running_since_s` is None
    if the trial does not run.
    """

    id: str
    run: str
    config: Mapping[str, Any]
    state: State = "pending"
    error: str | None = None
    points: tuple[Point, ...] = ()
    worker_counts: tuple[WorkerCount, ...] = ()
    running_s: float = 0.0
    running_since_s: float | None = None
    blocks: str | None = None
    best_run: str | None = None
    best_config: Mapping[str, Any] | None = None
    is_cut: bool = False
    inexact: tuple[str, ...] = ()

    @property
    def run_at_best(self) -> str:
        return self.best_run or self.run

    @property
    def config_at_best(self) -> Mapping[str, Any]:
        return self.config if self.best_config is None else self.best_config

    def with_state(self, state: State, at_s: float, error: str | None = None) -> TrialRecord:
        """Return a copy in the state `state` from `at_s` on."""
        if state == self.state:
            return self if error is None else replace(self, error=error)
        running_s = self.seconds(at_s)
        running_since_s = at_s if state == "running" else None
        trial = replace(self, state=state, error=error, running_s=running_s, running_since_s=running_since_s)
        return trial if state == "running" else trial.with_workers(0, at_s)

    def with_point(self, point: Point, *, is_fork: bool = False) -> TrialRecord:
        """Return a copy with the end of an epoch.

        A repeated one, as after a restart, changes nothing. Another one replaces all from its epoch on, which were
        trained again. Those of a fork belong to several runs, so it replaces none.
        """
        last = self.last
        if last is not None and (last.epoch, last.value) == (point.epoch, point.value):
            return self
        kept = (each for each in self.points if is_fork or each.epoch < point.epoch)
        return replace(self, points=(*kept, point))

    def with_best(self, mode: Mode, before: Point | None, config: Mapping[str, Any]) -> TrialRecord:
        """Return a copy with the run and config of its best value.

        Unchanged if that is `before`.
        """
        return self if self.best(mode) == before else replace(self, best_run=self.run, best_config=config)

    def with_workers(self, workers: int, at_s: float) -> TrialRecord:
        """Return a copy with `workers` workers from `at_s` on."""
        if workers == self.workers:
            return self
        return replace(self, worker_counts=(*self.worker_counts, WorkerCount(at_s=at_s, workers=workers)))

    def best(self, mode: Mode) -> Point | None:
        """Return the end of the epoch with the best value.

        The earliest of several. None without a value.
        """
        found = [point for point in self.points if point.value is not None]
        if not found:
            return None
        return min(found, key=lambda point: _cost(point.value, mode))

    def seconds(self, now_s: float) -> float:
        """Return the seconds that it has run, as of `now_s`."""
        return self.running_s + (max(now_s - self.running_since_s, 0.0) if self.running_since_s is not None else 0.0)

    @property
    def last(self) -> Point | None:
        """End of the newest epoch."""
        return self.points[-1] if self.points else None

    @property
    def epochs(self) -> int:
        """Number of trained epochs."""
        return self.points[-1].epoch if self.points else 0

    @property
    def workers(self) -> int:
        """Current number of workers."""
        return self.worker_counts[-1].workers if self.worker_counts else 0

    @property
    def has_started(self) -> bool:
        return self.state == "running" or self.running_s > 0 or bool(self.points)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(slots=True, kw_only=True)
class Record:
    """Record of a sweep, filled by `SweepRecorder`.

    `elapsed_s` is the running time of the sweep over all its starts. `started_at` is the Unix time of the first start.
    `deadline_at_s` is the deadline in running time: `deadline_s` after the newest `run_sweep`. `slots` is the number of
    workers that fit into the cluster. `log_axes` names the parameters with a logarithmic domain. `space` maps
    parameters to texts of their domains, and `fixed` to texts of the values that all trials share. `num_trials` is the
    number of requested trials. `stopped` is the reason of an early end.
    """

    name: str
    metric: str
    mode: Mode
    deadline_s: float | None = None
    started_at: float = 0.0
    elapsed_s: float = 0.0
    deadline_at_s: float | None = None
    slots: int | None = None
    log_axes: Sequence[str] = ()
    space: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    num_trials: int = 0
    stopped: str | None = None
    trials: dict[str, TrialRecord] = field(default_factory=dict)

    def put(self, trial: TrialRecord) -> None:
        """Replace the record of a trial."""
        self.trials[trial.id] = trial

    @property
    def best(self) -> TrialRecord | None:
        """Return the trial with the best value of any epoch.

        None before the first value.
        """
        ranked = self.ranked
        return ranked[0] if ranked and ranked[0].best(self.mode) is not None else None

    @property
    def best_value(self) -> float | None:
        point = self.best and self.best.best(self.mode)
        return point.value if point else None

    @property
    def ranked(self) -> list[TrialRecord]:
        """Return all trials, best first.

        Trials without a value are last.
        """

        def cost(trial: TrialRecord) -> float:
            point = trial.best(self.mode)
            return math.inf if point is None else _cost(point.value, self.mode)

        return sorted(self.trials.values(), key=cost)

    @property
    def parameters(self) -> list[str]:
        """Names of all swept parameters, in order of appearance."""
        return list(dict.fromkeys(name for trial in self.trials.values() for name in trial.config))

    @property
    def deadline_left_s(self) -> float | None:
        """Seconds until the deadline, or None without one."""
        return None if self.deadline_at_s is None else max(self.deadline_at_s - self.elapsed_s, 0.0)

    @property
    def slots_in_use(self) -> int:
        """Number of workers that train now."""
        return sum(trial.workers for trial in self.trials.values())

    def begin(self, now: float, late_s: float = 0.0) -> None:
        """Note that the sweep starts or restarts.

        Trials that were interrupted become pending.

        `late_s` is the time that already counts against its deadline.
        """
        self.started_at = self.started_at or now
        left_s = None if self.deadline_s is None else max(self.deadline_s - late_s, 0.0)
        self.deadline_at_s = None if left_s is None else self.elapsed_s + left_s
        self.stopped = None
        for trial in self.trials.values():
            if trial.state == "running" or trial.is_cut:
                self.trials[trial.id] = replace(trial.with_state("pending", self.elapsed_s), is_cut=False)

    def to_json(self) -> str:
        """Return strict JSON.

        Configs are plain values. Non-finite numbers and other types become text.
        """
        facts = {name: getattr(self, name) for name in FACTS}
        return to_json({"version": VERSION, **facts, "trials": [_facts(trial) for trial in self.trials.values()]})

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Read the result of `to_json`.

        Raises `InvalidOption` for anything that this version did not write.
        """
        return from_json(text, cls._of_facts, version=VERSION, owner="sweep", file_name=FILE_NAME)

    @classmethod
    def _of_facts(cls, facts: dict[str, Any]) -> Record:
        trials = [_trial(each) for each in facts.pop("trials")]
        log_axes = tuple(facts.pop("log_axes"))
        return require_types(cls(trials={trial.id: trial for trial in trials}, log_axes=log_axes, **facts))


FACTS = tuple(name for name in Record.__dataclass_fields__ if name != "trials")


def _cost(value: float | None, mode: Mode) -> float:
    assert value is not None
    return value if mode == "min" else -value


def _facts(trial: TrialRecord) -> dict[str, Any]:
    # `asdict` of a whole trial would copy the values of its config, and take dataclasses among them apart.
    facts = {name: getattr(trial, name) for name in TrialRecord.__dataclass_fields__}
    return facts | {name: [asdict(each) for each in facts[name]] for name in ("points", "worker_counts")}


def _trial(facts: Mapping[str, Any]) -> TrialRecord:
    points = tuple(Point(**point) for point in facts["points"])
    worker_counts = tuple(WorkerCount(**count) for count in facts["worker_counts"])
    inexact = tuple(facts["inexact"])
    return TrialRecord(**{**facts, "points": points, "worker_counts": worker_counts, "inexact": inexact})


def inexact_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the values that differ once read back from JSON.

    >>> inexact_names({"lr": 0.1, "layers": (64, 32), "key": "a"})
    ('layers',)
    """
    return tuple(name for name, value in config.items() if not _is_exact(value))


def _is_exact(value: Any) -> bool:
    if type(value) is list:
        return all(_is_exact(each) for each in value)
    if type(value) is dict:
        return all(type(name) is str and _is_exact(each) for name, each in value.items())
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def save_record(record: Record, path: str) -> None:
    """Write `sweep.json` into the sweep's folder `path`.

    Replaces the earlier file atomically.
    """
    write_json_file(path, FILE_NAME, record.to_json())


def load_record(path: str) -> Record | None:
    """Load the record of the sweep in `path`.

    None if no sweep was started there.

    Raises `InvalidOption` for a file that is not a record, and for a `path` that is a file.
    """
    content = read_json_file(path, FILE_NAME, "sweep")
    return None if content is None else Record.from_json(content)


ORDER = {"running": 0, "paused": 1, "pending": 2}
"""Sort keys of states: trials that may still change come first."""


def active_first(record: Record) -> list[TrialRecord]:
    """Return running, waiting, then ended trials.

    Within each group the best is first.
    """
    return sorted(record.ranked, key=lambda trial: ORDER.get(trial.state, len(ORDER)))
