"""What a sweep knows of its trials: their configs, their states, and how they did over time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from forebay.errors import InvalidOption
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import below, resolve

FILE_NAME = "sweep.json"
VERSION = 1

Mode = Literal["min", "max"]
State = Literal["pending", "running", "paused", "finished", "stopped", "failed"]
"""Not begun, or waiting for its turn again; training; put aside by the scheduler; all epochs trained; ended early by
the scheduler, the deadline or a person; ended by an error."""
ENDED = frozenset[State](("finished", "stopped", "failed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A trial at the end of an epoch. `at_s` is seconds of the sweep, `epoch` counts from 1.

    `value` is the metric, None where it was no finite number.
    """

    at_s: float
    epoch: int
    value: float | None
    workers: int
    rows_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCount:
    """How many workers train from `at_s` on."""

    at_s: float
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial so far. `run` names its run; `crews` holds a line per change of its world size.

    `best_run` and `best_config` are those it had when it came to its best value, None where they are the present ones:
    a trial may go on from another one's commit, with another config.

    `blocks` is what the cache calls what it trains on, empty without a cache, None before its first epoch has ended.

    `ran_s` is for how long it was running, up to `since_s`: when it began to run this time, None where it does not.
    """

    id: str
    run: str
    config: Mapping[str, Any]
    state: State = "pending"
    error: str | None = None
    points: tuple[Point, ...] = ()
    crews: tuple[WorkerCount, ...] = ()
    ran_s: float = 0.0
    since_s: float | None = None
    blocks: str | None = None
    best_run: str | None = None
    best_config: Mapping[str, Any] | None = None

    @property
    def run_at_best(self) -> str:
        return self.best_run or self.run

    @property
    def config_at_best(self) -> Mapping[str, Any]:
        return self.config if self.best_config is None else self.best_config

    def entered(self, state: State, at_s: float, error: str | None = None) -> TrialRecord:
        """As it is in another state from `at_s` on."""
        if state == self.state:
            return self if error is None else replace(self, error=error)
        ran_s = self.seconds(at_s)
        since_s = at_s if state == "running" else None
        trial = replace(self, state=state, error=error, ran_s=ran_s, since_s=since_s)
        return trial if state == "running" else trial.manned(0, at_s)

    def reached(self, point: Point) -> TrialRecord:
        """With the end of an epoch; one that is told again, as after a restart, is no news."""
        last = self.last
        if last is not None and (last.epoch, last.value) == (point.epoch, point.value):
            return self
        return replace(self, points=(*self.points, point))

    def has_best(self, mode: Mode, before: Point | None, config: Mapping[str, Any]) -> TrialRecord:
        """With the run, and the `config`, of its best value, if that is another one than `before`."""
        return self if self.best(mode) == before else replace(self, best_run=self.run, best_config=config)

    def manned(self, workers: int, at_s: float) -> TrialRecord:
        """With `workers` workers from `at_s` on."""
        if workers == self.workers:
            return self
        return replace(self, crews=(*self.crews, WorkerCount(at_s=at_s, workers=workers)))

    def best(self, mode: Mode) -> Point | None:
        """The end of the epoch with the best value; the earliest of several. None without a value."""
        found = [point for point in self.points if point.value is not None]
        if not found:
            return None
        return min(found, key=lambda point: _cost(point.value, mode))

    def seconds(self, now_s: float) -> float:
        """For how long it has been running, as of `now_s`."""
        return self.ran_s + (max(now_s - self.since_s, 0.0) if self.since_s is not None else 0.0)

    @property
    def last(self) -> Point | None:
        """The end of the newest epoch."""
        return self.points[-1] if self.points else None

    @property
    def epochs(self) -> int:
        """How many epochs are trained."""
        return self.points[-1].epoch if self.points else 0

    @property
    def workers(self) -> int:
        """How many workers train now."""
        return self.crews[-1].workers if self.crews else 0

    @property
    def has_begun(self) -> bool:
        return self.state == "running" or self.ran_s > 0 or bool(self.points)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(slots=True, kw_only=True)
class Record:
    """A sweep so far; the one who fills it is `Recorder`.

    `elapsed_s` counts the seconds the sweep was under way, over all its starts. `started_at` is Unix seconds of the
    first start. `deadline_at_s` is the deadline in these seconds: `deadline_s` after the newest `run_sweep`. `slots`
    is how many workers the cluster takes. `log_axes` names the parameters that are drawn from a logarithmic domain.
    `space` says what parameters are drawn from, and `num_trials` how many trials were asked for.
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
    num_trials: int = 0
    stopped: str | None = None
    trials: dict[str, TrialRecord] = field(default_factory=dict)

    def put(self, trial: TrialRecord) -> None:
        """Take over what is known of a trial now."""
        self.trials[trial.id] = trial

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the best value at the end of any of its epochs; None before there is one."""
        ranked = self.ranked
        return ranked[0] if ranked and ranked[0].best(self.mode) is not None else None

    @property
    def best_value(self) -> float | None:
        point = self.best and self.best.best(self.mode)
        return point.value if point else None

    @property
    def ranked(self) -> list[TrialRecord]:
        """All trials, the best first; those without a value last."""

        def cost(trial: TrialRecord) -> float:
            point = trial.best(self.mode)
            return math.inf if point is None else _cost(point.value, self.mode)

        return sorted(self.trials.values(), key=cost)

    @property
    def parameters(self) -> list[str]:
        """Names of all that was swept, in the order they came up."""
        return list(dict.fromkeys(name for trial in self.trials.values() for name in trial.config))

    @property
    def deadline_left_s(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self.deadline_at_s is None else max(self.deadline_at_s - self.elapsed_s, 0.0)

    @property
    def slots_in_use(self) -> int:
        """How many workers train now."""
        return sum(trial.workers for trial in self.trials.values())

    def begin(self, now: float, late_s: float = 0.0) -> None:
        """Note that the sweep starts, or starts again: whatever ran when it was cut off waits for its turn now.

        `late_s` is for how long its deadline has been counting by then.
        """
        self.started_at = self.started_at or now
        left_s = None if self.deadline_s is None else max(self.deadline_s - late_s, 0.0)
        self.deadline_at_s = None if left_s is None else self.elapsed_s + left_s
        self.stopped = None
        for trial in self.trials.values():
            if trial.state == "running":
                self.trials[trial.id] = trial.entered("pending", self.elapsed_s)

    def to_json(self) -> str:
        """Strict JSON: configs as plain values, what JSON has no word for as text."""
        facts = {name: getattr(self, name) for name in FACTS}
        trials = [asdict(trial) for trial in self.trials.values()]
        return json.dumps({"version": VERSION, **_plain(facts), "trials": _plain(trials)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Raises `InvalidOption` for anything that `to_json` of this version did not write."""
        try:
            facts = json.loads(text)
            if facts.pop("version") != VERSION:
                raise ValueError("another version")
            trials = [_trial(each) for each in facts.pop("trials")]
            log_axes = tuple(facts.pop("log_axes"))
            return cls(trials={trial.id: trial for trial in trials}, log_axes=log_axes, **facts)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidOption(
                f"this is no record of a Forebay sweep of version {VERSION} ({error}). "
                f"Remove {FILE_NAME} from the sweep's folder, or give the sweep another name."
            ) from error


FACTS = tuple(name for name in Record.__dataclass_fields__ if name != "trials")


def _cost(value: float | None, mode: Mode) -> float:
    assert value is not None
    return value if mode == "min" else -value


def _trial(facts: Mapping[str, Any]) -> TrialRecord:
    points = tuple(Point(**point) for point in facts["points"])
    crews = tuple(WorkerCount(**crew) for crew in facts["crews"])
    return TrialRecord(**{**facts, "points": points, "crews": crews})


def _plain(value: Any) -> Any:
    """`value` of what JSON knows: numbers that are none, and all else, as text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def save_record(record: Record, path: str) -> None:
    """Write `sweep.json` into the sweep's folder `path`, replacing an earlier one as a whole."""
    write_atomically(below(path, FILE_NAME), record.to_json().encode())


def load_record(path: str) -> Record | None:
    """The record in the sweep's folder `path`, or None where no sweep has been.

    Raises `InvalidOption` for a file that is no record, and for a `path` that is a file.
    """
    place = resolve(below(path, FILE_NAME))
    try:
        with place.fs.open_input_stream(place.path) as stream:
            return Record.from_json(stream.read())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InvalidOption(
            f"{path} is a file, and a sweep keeps what it makes in a folder of its name. Give the sweep another name, "
            "or another storage.",
            path=path,
        ) from error


ORDER = {"running": 0, "paused": 1, "pending": 2}
"""Those that may still change first."""


def lively_first(record: Record) -> list[TrialRecord]:
    """Running trials, those that wait, those that have ended; the best of each first."""
    return sorted(record.ranked, key=lambda trial: ORDER.get(trial.state, len(ORDER)))
