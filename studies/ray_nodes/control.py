"""A run on small Ray nodes that is resized, and what its actors received."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from studies.control_plane import PlaceCost
from studies.ray_nodes.counted import ReceivedCall, received
from studies.ray_nodes.model import Happened

from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.events import Event, Reported, Started
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, DriverBench
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.training.driver.elastic.event_loop import POLL_S
from forebay.training.driver.ray_train.driver import RayTrainDriver
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control

STEPS = 20
EVERY = 5
STEP_S = 0.1
PHASES = ("start", "training", "resize by one", "training 2", "resize to half", "training 3")


@dataclass
class PhaseMarks:
    """Callback that leads the run through `PHASES`: each world trains `STEPS` steps, then it is changed."""

    began: dict[str, float] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)
    worlds: list[int] = field(default_factory=list)
    _number: int = 0
    _left: int = STEPS

    def __call__(self, event: Event, control: Control) -> None:
        if not self.began:
            self.began[PHASES[0]] = time.time()
        if isinstance(event, Started):
            self.worlds.append(event.world_size)
        if isinstance(event, Reported) and control.stop_reason is None:
            self.steps[PHASES[self._number]] += 1
            self._see_step(control)

    def _see_step(self, control: Control) -> None:
        is_training = PHASES[self._number].startswith("training")
        changed = len(self.worlds) > self._number // 2
        if not is_training and changed:
            self._next()
            self._left = STEPS
        elif is_training:
            self._left -= 1
            if self._left == 0 and self._number == len(PHASES) - 1:
                self._next()
                control.stop("enough")
            elif self._left == 0:
                self._next()
                self._act(control)

    def _next(self) -> None:
        self._number += 1
        self.began[PHASES[self._number] if self._number < len(PHASES) else "end"] = time.time()

    def _act(self, control: Control) -> None:
        match PHASES[self._number]:
            case "resize by one":
                control.resize(self.worlds[0] - 1)
            case "resize to half":
                control.resize(max(self.worlds[0] // 2, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCalls:
    """Calls of a phase of a run on Ray nodes, beside what happened in it."""

    name: str
    seconds: float
    happened: Happened
    calls: Sequence[ReceivedCall]

    def model(self) -> dict[str, PlaceCost]:
        """Calls by `studies.control_plane`. A rank writes its part at each commit, and its node copies it."""
        commits = self.happened.commits + self.happened.epochs
        parts = Counter(dict.fromkeys(("acquire", "keep", "keep_copy"), commits * self.happened.before))
        has_parts = self.is_training and self.happened.before > 1  # one rank shards nothing
        stores = {"PartStoreActor": PlaceCost(calls=parts.total(), methods=parts)} if has_parts else {}
        return {"Coordinator": self.happened.coordinator_cost(), **stores}

    @property
    def is_training(self) -> bool:
        """Whether the world stays as it is."""
        return self.name.startswith("training")


def measure(num_nodes: int, folder: Path, counted: Path) -> list[PhaseCalls]:
    """Train on `num_nodes` nodes, a rank on each, with a model in parts. Returns the calls of each phase."""
    bench = DriverBench(folder)
    rows = bench.job("rows").data
    data = replace(rows, plan=build_plan(scan(str(folder / "data")), seed=3, lanes=num_nodes))
    marks = PhaseMarks()
    job = bench.job(
        "counted",
        data=data,
        elastic=Elastic(min_workers=1, max_workers=num_nodes, start=num_nodes),
        epochs=MOST_EPOCHS,
        checkpoint_every=EVERY,
        step_s=STEP_S,
        strategy="fsdp2",
        hang_timeout_s=600,
    )
    RayTrainDriver().run(job, [marks])
    return list(_phases(marks, received(counted)))


def _phases(marks: PhaseMarks, calls: Sequence[ReceivedCall]) -> Iterator[PhaseCalls]:
    times, steps = list(marks.began.values()), 0
    for number, name in enumerate(PHASES):
        begin, end = times[number], times[number + 1]
        world = marks.worlds[min(number // 2, len(marks.worlds) - 1)]
        before = 0 if not number else marks.worlds[number // 2 - 1] if number % 2 == 0 else world
        made, steps_before = marks.steps[name], steps
        within = [call for call in calls if begin <= call.at < end]
        steps += made
        epochs_before, epochs = steps_before // STEPS_PER_EPOCH, steps // STEPS_PER_EPOCH
        happened = Happened(
            before=before,
            after=0 if number % 2 else world,
            steps=made,
            commits=steps // EVERY - steps_before // EVERY,
            looks=sum(call.method == "view" for call in within),
            epochs_before=epochs_before,
            epochs=epochs - epochs_before,
            idle_s=max(0.0, end - begin - made * POLL_S),
        )
        yield PhaseCalls(name=name, seconds=end - begin, happened=happened, calls=within)
