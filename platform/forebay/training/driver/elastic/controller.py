"""Controller of a run's workers.

It compares the target with the worker pool and with the nodes that drain.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import ray
from ray.actor import ActorHandle

from forebay.ray_cluster.nodes import draining_nodes, is_urgent
from forebay.training.driver.elastic.coordinator import RunView
from forebay.training.driver.elastic.phase import Completed, Ended, Raised, Starting
from forebay.training.driver.elastic.policy import Decision, PoolView, PoolWorker, decide
from forebay.training.driver.elastic.pool import Lost, Message, Warmed, WorkerPool

TICK_S = 0.1
DRAINING_EVERY_S = 0.5
PATIENCE_S = 60.0
"""Two runs that each hold half of the workers they need would wait forever. After this time, one frees its workers."""
PAUSE_S = 2.0


class RunAborted(Exception):
    """The run has ended. The coordinator has the cause."""


@dataclass(frozen=True, slots=True)
class WorldPaused:
    """Every rank has left its world at the same checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBroken:
    """Workers died or lost their connection.

    `error` is one line about it.
    """

    error: str


WorldEnd: TypeAlias = Completed | Raised | WorldPaused | WorldBroken


class Backend(Protocol):
    """Connection of the ranks of a world.

    A backend knows how a broken collective looks. The controller does everything else.

    Laws: no method blocks. `begin` is called while no world trains, with warm workers by rank. `end_of_world` returns
    None until every worker of the world has left it or died, or one of them has raised.
    """

    def begin(self, names: Sequence[str]) -> None:
        """Start a world of `names`, by rank."""

    def note(self, message: Message) -> None:
        """Process a message of a worker."""

    def end_of_world(self) -> WorldEnd | None:
        """Return the end of the world.

        None while it trains. Raises `Hung`.
        """


class Controller:
    """Brings target and workers together.

    It has no thread of its own: a backend's loop calls `step`, or `run` loops. `is_resizing`: at the last `step`, the
    world was asked to pause for a resize.
    """

    def __init__(self, coordinator: ActorHandle, pool: WorkerPool, min_workers: int) -> None:
        self._coordinator, self._pool, self._min_workers = coordinator, pool, min_workers
        self._leaving: Mapping[str, float | None] = {}
        self._looked_at = -DRAINING_EVERY_S
        self._reported_nodes: set[str] = set()
        self._waits_since = time.monotonic()
        self.is_resizing = False

    def run(self, backend: Backend) -> None:
        """Train to the end.

        Raises `RunAborted` if the run ends in another way, and `Hung`.
        """
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
        """Return messages of the workers.

        Records losses of workers that do not train, and errors of their warm-up.
        """
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
        """Compare the workers with the target once.

        Returns the world to begin now, by rank. Empty if none is to begin. A world that trains is asked to pause if
        another one is to follow.
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
        """Record that no worker trains.

        Returns the workers of the ended world, by rank.
        """
        self._waits_since = time.monotonic()
        return self._pool.end_world()

    def _is_last(self, end: WorldEnd) -> bool:
        """Report the end of a world to the coordinator.

        Returns whether the run ends with it.
        """
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
        """Ask the world to pause, or take that back.

        It pauses at its next commit if another world is to follow.
        """
        resize_to = len(decision.next_world) or None
        # Ranks that are still joining learn of the resize once they train.
        self.is_resizing = resize_to is not None and not isinstance(view.phase, Starting)
        if resize_to != view.resize_to and not isinstance(view.phase, Starting):
            ray.get(self._coordinator.resize.remote(resize_to))

    def _pool_view(self, target: int) -> PoolView:
        workers: Sequence[PoolWorker] = list(self._pool.workers.values())
        if self._leaving:
            workers = [replace(each, is_leaving=each.node in self._leaving) for each in workers]
        nodes = self._nodes_of_world()
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
        if not (news := self._leaving.keys() - self._reported_nodes):
            return
        here = self._nodes_of_world()
        notices = dict[float | None, list[str]]()
        for node in sorted(here.keys() & news):
            self._reported_nodes.add(node)
            notices.setdefault(self._leaving[node], []).append(node)
        for at_s, nodes in notices.items():  # a rack that leaves is one event, and one upload
            ray.get(self._coordinator.draining.remote(nodes, sum(here[node] for node in nodes), at_s))

    def _nodes_of_world(self) -> Mapping[str, int]:
        """Number of workers that train on each node."""
        workers = self._pool.workers
        return Counter(workers[name].node for name in self._pool.world if name in workers)

    def _give_way(self) -> None:
        if time.monotonic() - self._waits_since < PATIENCE_S or not self._pool.is_half_placed:
            return
        self._pool.give_way(PAUSE_S * (1 + random.random()))  # noqa: S311 - no secret
        self._waits_since = time.monotonic()


def first_line(text: str) -> str:
    """Return the first line of a failure, in brackets.

    Empty if the text is empty.
    """
    line = text.strip().partition("\n")[0]
    return f" ({line:.60})" if line else ""
