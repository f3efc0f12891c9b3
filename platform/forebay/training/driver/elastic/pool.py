"""Worker processes of a run.

Each has its own placement group of one bundle in the cluster, and is warm before it is needed. A group for all workers
would have to be removed and requested again at every resize, and every process with it. A group that the cluster has no
room for stays requested: Ray's autoscaler sees it as demand, while training goes on without it.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from forebay.ray_cluster.nodes import new_placement
from forebay.training.driver.elastic.policy import PoolWorker
from forebay.training.driver.worker_error import WorkerError
from forebay.world import World

RETRY_S = 1.0
"""Pause after a failed start, times the failed starts in a row. A process may fail within milliseconds."""
KILLED_S = 5.0
"""A dismissed worker whose process still runs after this time is asked to end itself."""
ASKED_ONE_BY_ONE = 16
"""More requested workers than these are looked up together, in the table of all placement groups."""
LOOK_S = 1.0
CLOSE_S = 10.0
CLOSE_POLL_S = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Answer of a warm worker, from `node`.

    It has done all it can do without the others. `error` is what it raised instead.
    """

    node: str
    error: WorkerError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnedWorker:
    """A requested worker process.

    Its actor, and the reference of its `Ready`.
    """

    actor: ActorHandle
    ready: Any


class Message(Protocol):
    """Message from the worker `name`.

    Backends add messages of their own.
    """

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The worker's process has started, on `node`."""

    name: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """The worker is ready to train.

    Or it has raised during its warm-up.
    """

    name: str
    ready: Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The worker's process has ended.

    `why` holds more if it is known.
    """

    name: str
    why: str = ""


class Processes(Protocol):
    """Starts and watches a backend's worker processes.

    Laws: `spawn` does not block. `running` names processes that are known to run, even after Ray has declared them
    dead; it may change while it is read. `stop` returns at once, and the process ends itself.
    """

    def spawn(self, name: str, group: PlacementGroup) -> SpawnedWorker: ...

    @property
    def running(self) -> Collection[str]: ...

    def stop(self, name: str) -> None: ...

    def close(self) -> None: ...


class WorkerPool:
    """All workers of one run.

    The workers of the present world, by rank, and those that are coming. Used by one thread.
    """

    def __init__(
        self,
        run: str,
        bundle: Mapping[str, float],
        inbox: queue.SimpleQueue[Message],
        processes: Processes,
    ) -> None:
        self._run, self._bundle = run, {kind: amount for kind, amount in bundle.items() if amount}
        self._inbox, self._processes = inbox, processes
        self._actors: dict[str, ActorHandle] = {}
        self._groups: dict[str, PlacementGroup] = {}
        self._dismissed_at: dict[str, float] = {}
        self._num_spawned, self._num_failed_starts, self._spawn_at, self._look_at = 0, 0, 0.0, 0.0
        self.workers: dict[str, PoolWorker] = {}
        self.world: tuple[str, ...] = ()

    def spawn(self, count: int) -> None:
        """Request more workers.

        Does nothing if the last ones have just failed to start. Each gets a placement group of its own, because its
        state shows whether the cluster has room. An actor shows that only after its process has started.
        """
        if time.monotonic() >= self._spawn_at:
            for _ in range(count):
                self._start(new_placement(self._run, self._bundle))

    def dismiss(self, names: Iterable[str]) -> None:
        """End workers, and free their placement groups.

        Removes them from the pool at once.
        """
        for name in list(names):
            self._forget(name)
            if name not in self._processes.running:
                self._free_group(name)

    def replace(self, names: Iterable[str]) -> None:
        """Replace workers by processes in the same placement groups.

        A placement group whose node is lost moves to another node.
        """
        for name in list(names):
            self._forget(name)
            self._start(self._groups.pop(name))

    def give_way(self, pause_s: float) -> None:
        """Free the placement groups of workers that do not train.

        None is requested for `pause_s` seconds.
        """
        self.dismiss(self.workers.keys() - frozenset(self.world))
        self._spawn_at = time.monotonic() + pause_s

    def form_world(self, names: Sequence[str]) -> list[World]:
        """Make `names` the present world, by rank.

        Returns the `World` of each rank.
        """
        assert not self.world, "one world after the other"
        self.rank_world(names)
        before, worlds = Counter[str](), list[World]()
        for rank, node in enumerate(self.workers[name].node for name in names):
            worlds.append(World(rank=rank, size=len(names), local_rank=before[node], node=node))
            before[node] += 1
        return worlds

    def rank_world(self, names: Sequence[str]) -> None:
        """Set the order of the world's ranks.

        A backend may have an order of its own.
        """
        self.world = tuple(names)
        veterans = {name: replace(self.workers[name], is_veteran=True) for name in names}
        self.workers = veterans | {name: each for name, each in self.workers.items() if name not in veterans}

    def end_world(self) -> tuple[str, ...]:
        """Record that no worker trains.

        Returns the workers of the ended world, by rank.
        """
        world, self.world = self.world, ()
        return world

    def actor(self, name: str) -> ActorHandle:
        """Actor of a worker of the pool."""
        return self._actors[name]

    def kill(self, name: str) -> None:
        """Kill a worker that does not leave its world.

        `Lost` follows.
        """
        ray.kill(self._actors[name])

    def hear(self, wait_s: float) -> list[Message]:
        """Return messages of the pool's workers.

        They are recorded in `workers`. Waits up to `wait_s` seconds for the first.
        """
        self._look_for_placed()
        self._stop_dismissed()
        heard: list[Message] = []
        try:
            heard.append(self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait())
            while True:
                heard.append(self._inbox.get_nowait())
        except queue.Empty:
            return [message for message in heard if self._note(message)]

    def listen(self, name: str, reference: Any, message: Callable[[Any], Message]) -> None:
        """Put a worker's answer into the inbox.

        Puts `message(answer)` once the worker `name` has answered, or `Lost` if it dies before.
        """

        def done(future: Any) -> None:
            # Ray reports a death here too, though often later than a connection does.
            error = future.exception()
            self._inbox.put(Lost(name=name, why=str(error)) if error else message(future.result()))

        reference.future().add_done_callback(done)

    @property
    def is_half_placed(self) -> bool:
        """Whether only some of the coming workers are placed.

        The others wait for room in the cluster.
        """
        coming = self.workers.keys() - frozenset(self.world)
        return len({self.workers[name].state == "requested" for name in coming}) == 2

    def close(self) -> None:
        """End all workers.

        Waits until the processes that are known to run have ended.
        """
        for name in list(self.workers):
            self._forget(name)
        deadline = time.monotonic() + CLOSE_S
        while self._processes.running and time.monotonic() < deadline:
            self.hear(CLOSE_POLL_S)
        for name in list(self._groups):
            self._free_group(name)
        self._processes.close()

    def _start(self, group: PlacementGroup) -> None:
        name = f"worker-{self._num_spawned}"
        self._num_spawned += 1
        spawned = self._processes.spawn(name, group)
        self._actors[name], self._groups[name] = spawned.actor, group
        self.workers[name] = PoolWorker(name=name, since=time.monotonic())
        self.listen(name, spawned.ready, lambda ready: Warmed(name=name, ready=ready))

    def _note(self, message: Message) -> bool:
        """Record a message, and return whether it is new.

        It is old if its worker was dismissed or lost before.
        """
        name = message.name
        if isinstance(message, Lost) and name not in self.workers and name not in self._processes.running:
            self._free_group(name)
        if name not in self.workers:
            return False
        match message:
            case Connected():
                self.workers[name] = replace(self.workers[name], node=message.node)
            case Warmed():
                self._num_failed_starts = 0
                warm = replace(self.workers[name], state="warm", node=message.ready.node, since=time.monotonic())
                self.workers[name] = warm
            case Lost():
                if not self.workers[name].is_warm:
                    self._start_failed(message.why)
                self.dismiss([name])
        return True

    def _start_failed(self, why: str) -> None:
        log.warning("A worker process failed while it started: %s", why)
        self._num_failed_starts += 1
        self._spawn_at = time.monotonic() + RETRY_S * self._num_failed_starts

    def _look_for_placed(self) -> None:
        requested = [name for name, worker in self.workers.items() if worker.state == "requested"]
        if len(requested) <= ASKED_ONE_BY_ONE:
            placed = [name for name in requested if _is_placed(placement_group_table(self._groups[name]))]
        elif time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            table = placement_group_table()
            placed = [name for name in requested if _is_placed(table.get(self._groups[name].id.hex(), {}))]
        else:
            return
        for name in placed:
            self.workers[name] = replace(self.workers[name], state="placed", since=time.monotonic())

    def _stop_dismissed(self) -> None:
        """Stop processes that Ray declared dead but left alive.

        Each still holds memory and GPU of its node.
        """
        latest = time.monotonic() - KILLED_S
        for name in list(self._processes.running):
            if self._dismissed_at.get(name, math.inf) < latest:
                self._processes.stop(name)

    def _forget(self, name: str) -> None:
        """End a worker, even if only its connection was lost."""
        del self.workers[name]
        self._dismissed_at[name] = time.monotonic()
        ray.kill(self._actors.pop(name))

    def _free_group(self, name: str) -> None:
        """Remove the placement group of an ended process.

        Earlier, Ray would kill the process again, and log it.
        """
        group = self._groups.pop(name, None)
        if group is not None:
            remove_placement_group(group)


def _is_placed(group: Mapping[str, Any]) -> bool:
    return group.get("state") == "CREATED"
