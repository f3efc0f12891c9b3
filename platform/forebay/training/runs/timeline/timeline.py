"""Timeline of a run, kept as `timeline.json`.

What each start ran with, and what happened when.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, get_args

from forebay.errors import InvalidOption
from forebay.events import BatchesCut, EpochEnded, Event, MachineUse
from forebay.runtime.declared_types import require_facts, require_types
from forebay.storage.json_file import Fact, from_json, numbers, to_json
from forebay.training.runs.run_folder import RunFolder, aside_name

FILE_NAME = "timeline.json"
VERSION = 1
MAX_STARTS = 32
"""Number of newest starts that are kept."""

_KINDS = {kind.__name__: kind for kind in get_args(Event)}
_LEFT_OUT = ("name", "path")
_OF_EPOCH = ("epoch", "step")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrigin:
    """Config, data, code and packages of a start.

    All of it is public: without credentials, and secrets as `***`. `config` are the facts of the job, `data` those of
    its plan and datasets. `code` names the file of the train function, its SHA-256 and the commit of its repository.
    `packages` are the installed ones that Forebay knows of, in the driver's environment.
    """

    config: Mapping[str, Fact] = field(default_factory=dict)
    data: Mapping[str, Fact] = field(default_factory=dict)
    code: Mapping[str, Fact] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Further facts of a `Started`: the cost of the change before.

    Seconds without a reported step, and steps that were trained again.
    """

    gap_s: float | None = None
    repeated_steps: int | None = None


class ProgressPoint(NamedTuple):
    """Progress at one moment of a start.

    Has the seconds since it began, and the numbers of `Reported`. `loss` may be None.
    """

    at_s: float
    step: int
    rows: int
    wait_s: float
    world_size: int
    global_batch: int
    loss: float | None = None


class UsePoint(NamedTuple):
    """Use of a node up to a moment of a start."""

    at_s: float
    use: MachineUse


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """Event of a run, with its time.

    `at_s` counts from the begin of its start. `kind` is the event's class, `facts` are its fields. `Started` has also
    `gap_s`, the seconds between the last reported step before it and the first one after it, and `repeated_steps`, the
    steps that were trained again.
    """

    at_s: float
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def with_facts(self, **facts: Any) -> TimedEvent:
        """Copy with more facts."""
        return replace(self, facts={**self.facts, **facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One start of a run.

    It began at `at` (Unix seconds). `how` is how it ended. It is empty while it runs, and stays so for a
    process that was killed: then `last_s` is the age at which it was recorded last, and `saved_at` the time (Unix
    seconds). They differ after a machine was suspended. `omitted` counts events that are left out. `cuts` say which
    rows its steps trained on: one of 0 `batches` stands for cuts that are left out. `use` is the use of up to 5 nodes,
    by host.
    """

    at: float
    attempt: int | None
    origin: StartOrigin
    events: tuple[TimedEvent, ...] = ()
    progress: tuple[ProgressPoint, ...] = ()
    last_s: float = 0.0
    saved_at: float = 0.0
    how: str = ""
    omitted: int = 0
    cuts: tuple[BatchesCut, ...] = ()
    use: Mapping[str, tuple[UsePoint, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All starts of a run, the oldest first.

    `omitted` counts older ones that are left out. `damaged` counts files of this name that were set aside: what the
    starts before them did is not known.
    """

    starts: tuple[RunStart, ...] = ()
    omitted: int = 0
    damaged: int = 0

    def with_start(self, start: RunStart) -> Timeline:
        """Copy with a new start."""
        kept = (*self.starts, start)[-MAX_STARTS:]
        return replace(self, starts=kept, omitted=self.omitted + len(self.starts) + 1 - len(kept))

    @property
    def last_step(self) -> int:
        """Newest step that any start has reported. 0 before the first."""
        return next((start.progress[-1].step for start in reversed(self.starts) if start.progress), 0)

    @property
    def cuts(self) -> tuple[BatchesCut, ...]:
        """Return the cuts of the steps that shaped the model.

        Of all starts. A step that is trained again counts once.
        """
        found: list[BatchesCut] = []
        for cut in (each for start in self.starts for each in start.cuts):
            while found and found[-1].step >= cut.step:
                found.pop()
            found.append(cut)
        return tuple(found)

    def to_json(self) -> str:
        """Encode as the text of `timeline.json`."""
        facts = asdict(self)
        for start in facts["starts"]:
            start["use"] = {node: [(at_s, *use) for at_s, use in points] for node, points in start["use"].items()}
        return to_json({"version": VERSION, **facts})

    @classmethod
    def from_json(cls, text: str | bytes) -> Timeline:
        """Decode the text.

        Raises `InvalidOption` for anything that `to_json` of this version did not write.
        """
        return from_json(text, cls._of_facts, version=VERSION, owner="run", file_name=FILE_NAME)

    @classmethod
    def _of_facts(cls, facts: dict[str, Any]) -> Timeline:
        return require_types(cls(starts=tuple(_start(each) for each in facts.pop("starts")), **facts))


def _start(facts: dict[str, Any]) -> RunStart:
    events = tuple(_event(**each) for each in facts.pop("events"))
    progress = tuple(ProgressPoint(*each[:-1], **numbers({"loss": each[-1]})) for each in facts.pop("progress"))
    # A timeline of an earlier release has neither cuts nor use.
    cuts = tuple(BatchesCut(**each) for each in facts.pop("cuts", ()))
    use = {node: tuple(map(_use_point, points)) for node, points in facts.pop("use", {}).items()}
    origin = StartOrigin(**facts.pop("origin"))
    return RunStart(origin=origin, events=events, progress=progress, cuts=cuts, use=use, **facts)


def _use_point(values: Sequence[Any]) -> UsePoint:
    at_s, *use = values
    return UsePoint(at_s, MachineUse(**numbers(dict(zip(MachineUse._fields, use, strict=True)))))


def _event(facts: Mapping[str, Any], **others: Any) -> TimedEvent:
    lists = {name: tuple(map(tuple, value)) for name, value in facts.items() if isinstance(value, list)}
    event = TimedEvent(facts=numbers(facts) | lists, **others)
    if (kind := _KINDS.get(event.kind)) is not None:
        require_facts(event.facts, kind, recorded_names(kind))
    require_facts(event.facts, Interruption, ("gap_s", "repeated_steps"))
    return event


def recorded_names(kind: type[Event]) -> tuple[str, ...]:
    """Fields of an event that are recorded."""
    return _OF_EPOCH if kind is EpochEnded else tuple(each.name for each in fields(kind) if each.name not in _LEFT_OUT)


def save_timeline(timeline: Timeline, run: str | RunFolder) -> None:
    """Write or replace `timeline.json` in a run's folder.

    Raises `OSError`.
    """
    RunFolder.at(run).write(FILE_NAME, timeline.to_json())


def open_timeline(folder: RunFolder) -> Timeline:
    """Timeline that a new start of the run in `folder` continues.

    A damaged file is set aside: only reports read it, so training does not wait for its repair. Raises `OSError` if
    storage does not answer.
    """
    try:
        return load_timeline(folder) or Timeline()
    except (InvalidOption, IsADirectoryError) as error:
        damage = error.__cause__ or error
    number = folder.set_aside(FILE_NAME)
    kept = aside_name(FILE_NAME, number)
    log.warning(
        "%s in %s is damaged (%s). It is kept as %s; only reports miss it.", FILE_NAME, folder.uri, damage, kept
    )
    return Timeline(damaged=number)


def load_timeline(run: str | RunFolder) -> Timeline | None:
    """Return the timeline in a run's folder.

    None if there is none. Raises `InvalidOption` for another version.
    """
    content = RunFolder.at(run).read(FILE_NAME)
    return None if content is None else Timeline.from_json(content)
