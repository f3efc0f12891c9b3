"""The controller with a coordinator in this process, and a scripted pool and backend: no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.training.driver.elastic.test_coordinator import coordinator_of

from forebay.events import Failed, Started
from forebay.training.driver.elastic import controller as controller_module
from forebay.training.driver.elastic.controller import Controller, RunAborted, WorldBroken, WorldEnd, WorldPaused
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.driver.elastic.phase import Completed, Raised, TooManyFailures
from forebay.training.driver.elastic.policy import PoolWorker
from forebay.training.driver.elastic.pool import Lost, Message, Ready, Warmed
from forebay.training.driver.worker_error import WorkerError

Happens = Callable[[], Message | WorldEnd | None]
DONE = Completed(stopped=None)


class Remote:
    """The coordinator's methods, called like an actor's. Each call has answered when it returns."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._coordinator, name)
        return SimpleNamespace(remote=lambda *args, **named: asyncio.run(method(*args, **named)))


class ScriptedPool:
    """Pool and backend: warm workers "0", "1", ..., of which the first `size` train, and others that wait.

    At each look, the next entry of the script happens: a message, the end of the world, or nothing.
    """

    def __init__(self, size: int, waiting: Sequence[str] = ()) -> None:
        self.world = tuple(str(rank) for rank in range(size))
        names = (*self.world, *waiting)
        self.workers = {name: PoolWorker(name=name, since=0.0, state="warm", node="n") for name in names}
        self.script: list[Happens] = []
        self.begun: list[tuple[str, ...]] = []
        self.gave_way: list[float] = []
        self.is_half_placed = False
        self._end: WorldEnd | None = None

    def hear(self, wait_s: float) -> list[Message]:
        happens = self.script.pop(0)()
        match happens:
            case None:
                return []
            case Completed() | Raised() | WorldPaused() | WorldBroken():
                self._end = happens
                return []
            case Lost():
                del self.workers[happens.name]
        return [happens]

    def spawn(self, count: int) -> None: ...

    def dismiss(self, names: Sequence[str]) -> None:
        for name in names:
            del self.workers[name]

    def give_way(self, pause_s: float) -> None:
        self.gave_way.append(pause_s)

    def end_world(self) -> tuple[str, ...]:
        world, self.world = self.world, ()
        return world

    def begin(self, names: Sequence[str]) -> None:
        self.world, self._end = tuple(names), None
        self.begun.append(self.world)

    def note(self, message: Message) -> None: ...

    def end_of_world(self) -> WorldEnd | None:
        return self._end


@pytest.fixture(autouse=True)
def draining(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    nodes: dict[str, float | None] = {}
    monkeypatch.setattr(controller_module, "ray", SimpleNamespace(get=lambda answer: answer))
    monkeypatch.setattr(controller_module, "draining_nodes", lambda: nodes)
    monkeypatch.setattr(controller_module, "DRAINING_EVERY_S", 0.0)
    return nodes


def begun(size: int, max_failures: int = 3) -> Coordinator:
    coordinator = coordinator_of(size, max_failures=max_failures)
    asyncio.run(coordinator.begin(size))
    asyncio.run(coordinator.report(started(size)))
    asyncio.run(coordinator.take(0))
    return coordinator


def started(size: int) -> Started:
    return Started(name="a", world_size=size, epochs=4, num_batches=8)


def conduct(pool: ScriptedPool, coordinator: Coordinator, *script: Happens) -> None:
    pool.script = list(script)
    Controller(Remote(coordinator), pool, min_workers=1).run(pool)  # type: ignore[arg-type]


def resize_to(coordinator: Coordinator) -> int | None:
    return asyncio.run(coordinator.view()).resize_to


def nothing() -> None:
    return None


def test_world_that_pauses_is_followed_by_one_of_the_target_size() -> None:
    coordinator, pool = begun(1), ScriptedPool(1, ["next"])
    asyncio.run(coordinator.set_target(2))
    conduct(pool, coordinator, nothing, WorldPaused, lambda: DONE)
    assert pool.begun == [("0", "next")]
    assert asyncio.run(coordinator.cause()) == DONE


def test_order_to_pause_outlives_the_loss_of_a_waiting_worker() -> None:
    coordinator, pool = begun(2), ScriptedPool(2, ["next", "late"])
    asyncio.run(coordinator.set_target(4))
    found: list[Any] = []

    def look() -> None:
        found.append((resize_to(coordinator), asyncio.run(coordinator.status()).state))

    conduct(pool, coordinator, nothing, look, lambda: Lost(name="late", why="killed\nby"), look, lambda: DONE)
    assert found == [(4, "resizing"), (3, "resizing")], "the other one that waits is ready"
    events = asyncio.run(coordinator.take(0))[0]
    assert list(events) == [Failed(error="lost a waiting worker (killed)", failures=1, will_retry=True)]


def test_shrink_that_is_taken_back_is_forgotten() -> None:
    coordinator, pool = begun(2), ScriptedPool(2)
    found: list[int | None] = []

    def change_mind() -> None:
        asyncio.run(coordinator.set_target(1))
        found.append(resize_to(coordinator))
        asyncio.run(coordinator.set_target(2))

    conduct(pool, coordinator, change_mind, lambda: found.append(resize_to(coordinator)), lambda: DONE)
    assert found == [1, None]


def test_ranks_that_still_gather_are_told_to_pause_once_they_train() -> None:
    coordinator, pool = coordinator_of(1), ScriptedPool(1, ["next"])
    asyncio.run(coordinator.begin(1))
    asyncio.run(coordinator.set_target(2))
    found: list[int | None] = []

    def start() -> None:
        found.append(resize_to(coordinator))
        asyncio.run(coordinator.report(started(1)))

    conduct(pool, coordinator, nothing, start, lambda: found.append(resize_to(coordinator)), lambda: DONE)
    assert found == [None, 2]


def test_survivors_of_a_broken_world_go_on_at_once() -> None:
    coordinator, pool = begun(2), ScriptedPool(2)

    def break_world() -> WorldEnd:
        del pool.workers["1"]
        return WorldBroken(error="lost worker 1")

    conduct(pool, coordinator, break_world, lambda: DONE)
    assert pool.begun == [("0",)]
    assert asyncio.run(coordinator.take(0))[0] == [Failed(error="lost worker 1", failures=1, will_retry=True)]


@pytest.mark.parametrize("happens", [lambda: WorldBroken(error="gone"), lambda: Lost(name="next", why="gone")])
def test_losses_beyond_what_the_job_allows_end_the_run(happens: Happens) -> None:
    coordinator = begun(1, max_failures=0)
    with pytest.raises(RunAborted):
        conduct(ScriptedPool(1, ["next"]), coordinator, happens)
    cause = asyncio.run(coordinator.cause())
    assert isinstance(cause, TooManyFailures) and "gone" in cause.error


@pytest.mark.parametrize("when", ["warming up", "training"])
def test_what_a_worker_raises_ends_the_run(when: str) -> None:
    error = WorkerError(rank=0, summary="ValueError: no", traceback="", pickled=None)
    warmed = Warmed(name="next", ready=Ready(node="n", error=error))
    coordinator = begun(1)
    with pytest.raises(RunAborted):
        conduct(ScriptedPool(1, ["next"]), coordinator, lambda: warmed if when == "warming up" else Raised(error=error))
    assert asyncio.run(coordinator.cause()) == Raised(error=error)


def test_draining_node_is_reported_once_and_left(draining: dict[str, float | None]) -> None:
    coordinator, pool = begun(1), ScriptedPool(1)
    pool.workers["next"] = PoolWorker(name="next", since=0.0, state="warm", node="other")
    draining["n"] = None
    conduct(pool, coordinator, nothing, nothing, WorldPaused, lambda: DONE)
    assert [event.workers for event in asyncio.run(coordinator.take(0))[0]] == [1]
    assert pool.begun == [("next",)]


def test_run_that_holds_half_of_what_it_needs_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "PATIENCE_S", 0.0)
    coordinator, pool = coordinator_of(2), ScriptedPool(0, ["only"])
    pool.is_half_placed = True
    pool.script = [nothing, nothing]
    controller = Controller(Remote(coordinator), pool, min_workers=2)  # type: ignore[arg-type]
    assert controller.step(controller.view()) == ()
    assert len(pool.gave_way) == 1
    pool.is_half_placed = False
    assert controller.step(controller.view()) == ()
    assert len(pool.gave_way) == 1
