"""A run on small Ray nodes that is resized, and what its actors received."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from studies.control_plane import PlaceCost
from studies.ray_nodes.counted import ReceivedCall, received
from studies.ray_nodes.model import PARAMETER_BYTES, Happened

from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.events import Event, Reported, Started
from forebay.testing.drivers.bench import ROWS, DriverBench
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.testing.drivers.events import StepAttempt
from forebay.training.driver.elastic.event_loop import POLL_S
from forebay.training.driver.ray_train.backend import PAUSING_S
from forebay.training.driver.ray_train.driver import RayTrainDriver
from forebay.training.driver.worker_main import USE_EVERY_S
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control

STEPS = 20
EVERY = 5
STEP_S = 0.1
PHASES = ("start", "training", "resize by one", "training 2", "resize to half", "training 3", "end")
"""The coordinator's calls tell them apart, by the size of the world that has begun:

- training begins with the first step of a world of the wanted size,
- a resize begins with the driver's `set_target`, and the end with its `request_stop`.
"""


def sizes_of(num_nodes: int) -> tuple[int, int, int]:
    """Ranks of the worlds that train."""
    return num_nodes, num_nodes - 1, max(num_nodes // 2, 1)


@dataclass
class PhaseLead:
    """Callback that leads the run through `PHASES`: each world trains `STEPS` steps, then it is changed."""

    sizes: Sequence[int]
    began: list[tuple[float, int]] = field(default_factory=list)
    """Time and size of each world."""
    _number: int = 0
    _left: int = STEPS

    def __call__(self, event: Event, control: Control) -> None:
        if isinstance(event, Started):
            self.began.append((time.time(), event.world_size))
        is_wanted = (
            self._number < len(self.sizes) and bool(self.began) and self.began[-1][1] == self.sizes[self._number]
        )
        if not isinstance(event, Reported) or not is_wanted:
            return
        self._left -= 1
        if self._left:
            return
        self._number, self._left = self._number + 1, STEPS
        if self._number == len(self.sizes):
            control.stop("enough")
        else:
            control.resize(self.sizes[self._number])


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCalls:
    """Calls of a phase of a run on Ray nodes, beside what happened in it."""

    name: str
    seconds: float
    happened: Happened
    calls: Sequence[ReceivedCall]

    def model(self) -> dict[str, PlaceCost]:
        """Cost by actor, by `studies.control_plane`."""
        return {"Coordinator": self.happened.coordinator_cost(), "PartStoreActor": self.happened.part_store_cost()}


def measure(num_nodes: int, folder: Path, counted: Path) -> list[PhaseCalls]:
    """Train on `num_nodes` nodes, a rank on each, with a model in parts. Returns the calls of each phase."""
    bench = DriverBench(folder)
    rows = bench.job("rows").data
    batch = max(rows.global_batch, num_nodes)
    data = replace(rows, plan=build_plan(scan(str(folder / "data")), seed=3, lanes=num_nodes), global_batch=batch)
    sizes = sizes_of(num_nodes)
    lead = PhaseLead(sizes)
    job = bench.job(
        "counted",
        data=data,
        # At least half of the nodes: a first world of one rank would train until the others have started.
        elastic=Elastic(min_workers=sizes[-1], max_workers=num_nodes, start=num_nodes),
        epochs=MOST_EPOCHS,
        checkpoint_every=EVERY,
        step_s=STEP_S,
        strategy="fsdp2",
        hang_timeout_s=600,
    )
    RayTrainDriver().run(job, [lead])
    steps = [each for each in bench.attempts("counted") if each.rank == 0]
    return list(_phases(sizes, lead.began, steps, received(counted), -(-ROWS // batch)))


def begins_of(sizes: Sequence[int], calls: Sequence[ReceivedCall]) -> list[int]:
    """Index of the first of the coordinator's `calls` in each phase."""
    begins, size = [0], 0
    for index, call in enumerate(calls):
        if call.method == "begin":
            size = int(call.subject)
        is_training, world = len(begins) % 2 == 0, sizes[min((len(begins) - 1) // 2, len(sizes) - 1)]
        # The first commit of a world asks for the request to it, before its step is reported.
        is_step = call.method == "request" or (call.method == "report" and call.subject == "Reported")
        changes = call.method in ("set_target", "request_stop") if is_training else is_step and size == world
        if changes and len(begins) < len(PHASES):
            begins.append(index)
    return begins


def _phases(
    sizes: Sequence[int],
    worlds: Sequence[tuple[float, int]],
    steps: Sequence[StepAttempt],
    calls: Sequence[ReceivedCall],
    steps_per_epoch: int,
) -> Iterator[PhaseCalls]:
    here = [call for call in calls if call.actor == "Coordinator"]
    begins = [*begins_of(sizes, here), len(here)]
    times = [_time_of(steps, here[index]) for index in begins[:-1]] + [here[-1].at + 1.0]
    for number, size in enumerate(sizes[:-1]):  # a world pauses at its last step, also where that was under way
        last = max(each.time for each in steps if each.size == size)
        times[2 * number + 2] = min(times[2 * number + 2], last)
    epochs, round_s = 0, _round_s(here)
    for name, (first, stop), (begin, end) in zip(PHASES, pairwise(begins), pairwise(times), strict=True):
        within = here[first:stop]
        made = [each for each in steps if begin <= each.time < end]
        # A step's attempt is written before the step is counted.
        saved = [each for each in made if 0 in ((each.step + 1) % EVERY, (each.step + 1) % steps_per_epoch)]
        ends = [(each.step + 1) % steps_per_epoch == 0 for each in saved]
        happened = _happened(made, worlds, begin, end, round_s)
        kept = {str(each.step + 1) for each in made}
        parts = [call for call in calls if call.actor == "PartStoreActor" and call.subject in kept]
        happened = replace(
            happened,
            checkpoints=ends,
            epochs_before=epochs,
            parts=sum(each.size for each in saved if each.size > 1),
            part_bytes=sum(each.size > 1 for each in saved) * PARAMETER_BYTES,
            looks=sum(call.method == "view" for call in within),
            uploads=len({call.subject for call in parts if call.method == "held"}),
            stores=sizes[0],
            is_end=name == "end",
        )
        epochs += sum(ends)
        yield PhaseCalls(name=name, seconds=end - begin, happened=happened, calls=[*within, *parts])


def _round_s(calls: Sequence[ReceivedCall]) -> float:
    """Time in which the driver waits for an event in vain, and asks again. It is longer than `POLL_S` on busy cores."""
    asked = [call for call in calls if call.method == "take"]
    return median(late.at - early.at for early, late in pairwise(asked) if early.took_s >= POLL_S)


def _time_of(steps: Sequence[StepAttempt], call: ReceivedCall) -> float:
    reported = [each.time for each in steps if each.time <= call.at]
    return reported[-1] if call.method in ("report", "request") and reported else call.at


def _happened(
    made: Sequence[StepAttempt], worlds: Sequence[tuple[float, int]], begin: float, end: float, round_s: float
) -> Happened:
    before = [size for at, size in worlds if at < begin]
    began = [(at, size) for at, size in worlds if begin <= at < end]
    uses = [at for at in _uses(worlds, end) if begin <= at < end]
    moments = sorted([*(each.time for each in made), *(at for at, _ in began), *uses])
    paused = [each.time for each in made if before and each.size == before[-1]]
    return Happened(
        before=before[-1] if before else 0,
        began=[size for _, size in began],
        steps=len(made),
        uses=len(uses),
        idle=sum(int((late - early) / round_s) for early, late in pairwise([begin, *moments, end])),
        pauses=1 + int((max(paused, default=begin) - begin) / PAUSING_S),
    )


def _uses(worlds: Sequence[tuple[float, int]], end: float) -> Iterator[float]:
    """Times at which a world reports the use of this machine: to Ray Train, all nodes of one address are one."""
    ends = [*(at for at, _ in worlds[1:]), end]
    for (began, _), stop in zip(worlds, ends, strict=True):
        at = began + 2 * USE_EVERY_S
        while at < stop:
            yield at
            at += USE_EVERY_S
