"""Controller of a run's workers: what the coordinator wants, which workers there are, and which nodes go."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import ray
from ray.actor import ActorHandle

from forebay.driver.elastic.coordinator import RunView
from forebay.driver.elastic.phase import Completed, Ended, Raised, Starting
from forebay.driver.elastic.policy import Decision, PoolView, decide
from forebay.driver.elastic.pool import Lost, Message, Warmed, WorkerPool
from forebay.ray_cluster.nodes import draining_nodes, is_urgent

TICK_S = 0.1
DRAINING_EVERY_S = 0.5
PATIENCE_S = 60.0
"""Two runs that hold half of what each of them needs would wait without end: after this long, one gives way."""
PAUSE_S = 2.0


class RunAborted(Exception):
    """The run has ended, for the reason that the coordinator knows."""


@dataclass(frozen=True, slots=True)
class WorldPaused:
    """Every rank has left its world at the same commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBroken:
    """Workers were lost, or lost touch; `error` is one line about it."""

    error: str


WorldEnd: TypeAlias = Completed | Raised | WorldPaused | WorldBroken


class Backend(Protocol):
    """How the ranks of a world meet, and how a broken collective looks; all else is the controller's.

    Laws: no method blocks; `begin` is called where no world is under way, with warm workers by rank; `end_of_world`
    answers None until every worker of the world has left it or is lost, or one of them has raised.
    """

    def begin(self, names: Sequence[str]) -> None:
        """Let the workers `names` train together."""

    def note(self, message: Message) -> None:
        """Take in a message of a worker."""

    def end_of_world(self) -> WorldEnd | None:
        """How the present world has ended, once it has. Raises `Hung`."""


class Controller:
    """Brings target and workers together. Owns no thread: a backend's loop calls `step`, or `run` is the loop.

    `is_resizing`: the world was told to pause for another one at the last `step`.
    """

    def __init__(self, coordinator: ActorHandle, pool: WorkerPool, min_workers: int) -> None:
        self._coordinator, self._pool, self._min_workers = coordinator, pool, min_workers
        self._leaving: Mapping[str, float | None] = {}
        self._looked_at = -DRAINING_EVERY_S
        self._reported_nodes: set[str] = set()
        self._waits_since = time.monotonic()
        self.is_resizing = False

    def run(self, backend: Backend) -> None:
        """Train to the end. Raises `RunAborted` where the run ends in another way, and `Hung`."""
        while True:
            for message in self.hear(TICK_S):
                backend.note(message)
            if self._pool.world and (end := backend.end_of_world()) is not None:
                self.end_world()
                if self._is_last(end):
                    return
            view = self.view()
            if isinstance(view.phase, Ended):
                raise RunAborted
            if names := self.step(view):
                backend.begin(names)

    def view(self) -> RunView:
        """The coordinator's view of the run."""
        view: RunView = ray.get(self._coordinator.view.remote())
        return view

    def hear(self, wait_s: float) -> list[Message]:
        """Messages of the workers; losses of those that do not train, and errors of their warm-up, are recorded."""
        messages = self._pool.hear(wait_s)
        for message in messages:
            match message:
                case Warmed() if message.ready.error is not None:
                    ray.get(self._coordinator.raise_error.remote(message.ready.error))
                case Lost() if message.name not in self._pool.world:
                    error = f"lost a waiting worker{first_line(message.why)}"
                    record = self._coordinator.record_failure
                    ray.get(record.remote(error, world_goes_on=bool(self._pool.world)))
        return messages

    def step(self, view: RunView) -> tuple[str, ...]:
        """One look at the workers. Returns the world to begin now, by rank; empty where none is to begin.

        While a world trains, it is told to pause where another one is to follow.
        """
        self._look_for_draining()
        decision = decide(self._pool_view(view.target))
        self._pool.dismiss(decision.dismiss)
        self._pool.spawn(decision.spawn)
        if self._pool.world:
            self._order(decision, view)
            return ()
        if not decision.next_world:
            self._give_way()
            return ()
        ray.get(self._coordinator.begin.remote(len(decision.next_world)))
        return decision.next_world

    def end_world(self) -> tuple[str, ...]:
        """Note that no worker trains. Returns those that did, by rank."""
        self._waits_since = time.monotonic()
        return self._pool.end_world()

    def _is_last(self, end: WorldEnd) -> bool:
        """Whether the run ends with this world. Tells the coordinator."""
        match end:
            case Completed():
                ray.get(self._coordinator.complete.remote(end.stopped))
                return True
            case Raised():
                ray.get(self._coordinator.raise_error.remote(end.error))
            case WorldBroken():
                ray.get(self._coordinator.record_failure.remote(end.error))
        return False

    def _order(self, decision: Decision, view: RunView) -> None:
        """Have the world pause at its next commit if another one is to follow; or take that back."""
        resize_to = len(decision.next_world) or None
        # Ranks that still gather hear it once they train.
        self.is_resizing = resize_to is not None and not isinstance(view.phase, Starting)
        if resize_to != view.resize_to and not isinstance(view.phase, Starting):
            ray.get(self._coordinator.resize.remote(resize_to))

    def _pool_view(self, target: int) -> PoolView:
        workers = [replace(each, is_leaving=each.node in self._leaving) for each in self._pool.workers.values()]
        nodes = {each.node for each in workers if each.name in self._pool.world}
        return PoolView(
            workers=workers,
            world=self._pool.world,
            target=target,
            min_workers=self._min_workers,
            is_urgent=is_urgent({node: at_s for node, at_s in self._leaving.items() if node in nodes}),
            now=time.monotonic(),
        )

    def _look_for_draining(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < DRAINING_EVERY_S:
            return
        self._looked_at, self._leaving = now, draining_nodes()
        for node, at_s in self._leaving.items():
            here = sum(self._pool.workers[name].node == node for name in self._pool.world if name in self._pool.workers)
            if here and node not in self._reported_nodes:
                self._reported_nodes.add(node)
                ray.get(self._coordinator.draining.remote(node, here, at_s))

    def _give_way(self) -> None:
        if time.monotonic() - self._waits_since < PATIENCE_S or not self._pool.is_half_placed:
            return
        self._pool.give_way(PAUSE_S * (1 + random.random()))  # noqa: S311 - no secret
        self._waits_since = time.monotonic()


def first_line(text: str) -> str:
    """The first line of what is known of a failure, in brackets; empty where nothing is known."""
    line = text.strip().partition("\n")[0]
    return f" ({line:.60})" if line else ""
