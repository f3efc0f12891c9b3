"""Leads a run under Horovod from world to world: what the coordinator wants, who is there, and which nodes go."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import ray
from ray.actor import ActorHandle

from forebay.driver.elastic.coordinator import RunView
from forebay.driver.elastic.policy import Decision, PoolView, decide
from forebay.driver.horovod.backend import Answered, HorovodWorld, Message, Warmed, WorkerPool
from forebay.driver.horovod.liveness import Lost
from forebay.driver.horovod.worker import Broken
from forebay.driver.worker_error import WorkerError
from forebay.driver.worker_main import Outcome
from forebay.errors import Hung
from forebay.ray_cluster.nodes import draining_nodes

TICK_S = 0.1
DRAINING_EVERY_S = 0.5
MEET_S = 1.0
"""How long after a death those may still be waiting for the dead one to meet them; Horovod cannot call them back."""
QUIET_S = 5.0
"""How long the members of a world that came apart may differ in noticing it, if none of them has died."""


class RunRaised(Exception):
    """A worker raised what no other worker's death explains."""

    def __init__(self, raised: WorkerError) -> None:
        super().__init__(raised.summary)
        self.raised = raised


class TooManyLost(Exception):
    """Workers were lost once more than the job allows."""


class HorovodRunAborted(Exception):
    """The driver has given up on the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodTerms:
    """What the job says about worlds and failures."""

    name: str
    min_workers: int
    max_failures: int
    hang_timeout_s: float


class HorovodController:
    """Runs in a thread of its own: no callback of the driver holds it up."""

    def __init__(self, terms: HorovodTerms, crew: WorkerPool, coordinator: ActorHandle) -> None:
        self._terms, self._crew, self._coordinator = terms, crew, coordinator
        self._failures = 0
        self._leaving: Mapping[str, float | None] = {}
        self._looked_at = -DRAINING_EVERY_S
        self._told: set[str] = set()
        self._broken_at: float | None = None
        self._left_at: float | None = None

    def conduct(self) -> str | None:
        """Train to the end; the answer is why the run stopped early, if it did.

        Raises `RunRaised`, `TooManyLost`, `Hung`, or `HorovodRunAborted` after the driver has given up.
        """
        while True:
            self._hear(self._crew.hear(TICK_S))
            world = self._crew.world
            if world is not None and not world.silent:
                outcome = self._end(world)
                if outcome is not None:
                    return outcome.stopped
            wanted: RunView = ray.get(self._coordinator.view.remote())
            if wanted.is_ending:
                raise HorovodRunAborted
            self._look_for_draining()
            self._act(wanted)
            if self._crew.world is not None:
                self._press(self._crew.world)

    def _hear(self, message: Message | None) -> None:
        world = self._crew.world
        match message:
            case Warmed(raised=WorkerError() as raised) | Answered(answer=WorkerError() as raised):
                raise RunRaised(raised)
            case Answered(answer=Broken()):
                self._broken_at = self._broken_at or time.monotonic()
            case Answered(answer=Outcome()):
                self._left_at = self._left_at or time.monotonic()
            case Lost() if world is not None and message.name in world.lost:
                self._broken_at = self._broken_at or time.monotonic()
            case Lost() if world is None or message.name not in world.names:
                self._count_failure(f"lost a waiting worker{_first_line(message.why)}", goes_on=world is not None)

    def _end(self, world: HorovodWorld) -> Outcome | None:
        """Take the world apart; how the run ended, if it did: rank 0 has the last word, for it saves the commits."""
        self._crew.end_world()
        self._broken_at, self._left_at = None, None
        first = world.answers.get(world.names[0])
        if isinstance(first, Outcome) and first.parting is None:
            return first
        if world.lost:
            ranks = world.lost_ranks
            self._count_failure(f"lost worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}")
        else:
            broken = [answer for answer in world.answers.values() if isinstance(answer, Broken)]
            if broken:
                self._count_failure(f"the workers lost touch{_first_line(broken[0].raised.summary)}")
        return None

    def _count_failure(self, error: str, *, goes_on: bool = False) -> None:
        self._failures += 1
        if self._failures > self._terms.max_failures:
            raise TooManyLost(error)
        tell = self._coordinator.lost_waiting if goes_on else self._coordinator.lost_workers
        ray.get(tell.remote(error))

    def _act(self, wanted: RunView) -> None:
        crew = self._crew
        view = PoolView(
            crew=[replace(member, is_leaving=member.node in self._leaving) for member in crew.members.values()],
            world=() if crew.world is None else crew.world.names,
            target=wanted.target,
            min_workers=self._terms.min_workers,
            now=time.monotonic(),
        )
        decision = decide(view)
        crew.dismiss(decision.dismiss)
        crew.ask_for(decision.ask_for)
        if crew.world is not None:
            self._have_parted(decision, wanted)
        elif decision.next_world:
            ray.get(self._coordinator.begin.remote(len(decision.next_world)))
            crew.make_world(decision.next_world)

    def _have_parted(self, decision: Decision, wanted: RunView) -> None:
        """Have the world end at its next commit if another one shall follow; or take that back."""
        parting = len(decision.next_world) or None
        if parting != wanted.parting:
            ray.get(self._coordinator.part_for.remote(parting))

    def _look_for_draining(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < DRAINING_EVERY_S:
            return
        self._looked_at, self._leaving = now, draining_nodes()
        for node, at_s in self._leaving.items():
            here = sum(member.node == node for member in self._crew.members.values())
            if here and node not in self._told:
                self._told.add(node)
                ray.get(self._coordinator.draining.remote(node, here, at_s))

    def _press(self, world: HorovodWorld) -> None:
        """See to it that a world ends which came apart, or which some have left."""
        if not world.silent:
            return
        if self._broken_at is None:
            # Who hangs outside of a collective keeps nobody waiting once the others are done, except the driver.
            if self._left_at is not None and time.monotonic() - self._left_at > self._terms.hang_timeout_s:
                raise self._hung([world.names.index(name) for name in world.silent])
            return
        silent_s = time.monotonic() - self._broken_at
        if world.lost and silent_s > MEET_S:
            for name in [name for name in world.silent if name not in world.entered]:
                self._crew.kill(name)
        # After a death, each of the others notices when it next needs the dead one.
        if silent_s > (self._terms.hang_timeout_s if world.lost else QUIET_S):
            ranks = [world.names.index(name) for name in world.silent]
            raise self._hung(ranks)

    def _hung(self, ranks: list[int]) -> Hung:
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        timeout_s = self._terms.hang_timeout_s
        return Hung(
            f"{named} of run {self._terms.name!r} hung: the others waited in vain (hang_timeout_s={timeout_s:g}), "
            "though the process lives. Look for a rank that takes another number of steps, waits for a lock, or reads "
            "without an end; if a step may take that long, raise hang_timeout_s. What was committed is kept: run "
            f"{self._terms.name!r} again to continue.",
            ranks=ranks,
            timeout_s=timeout_s,
        )


def _first_line(text: str) -> str:
    """For a failure's one line: what is known of it, or nothing."""
    line = text.strip().partition("\n")[0]
    return f" ({line:.60})" if line else ""
