"""The conductor, with a crew and a coordinator that are told what happens: no Ray, no Horovod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.driver.elastic.test_coordinator import coordinator_of

from forebay.driver.elastic.coordinator import Coordinator
from forebay.driver.elastic.policy import PoolWorker
from forebay.driver.horovod import failure_detector as horovod_conductor
from forebay.driver.horovod.backend import Answered, HorovodWorld, Message
from forebay.driver.horovod.failure_detector import HorovodController, HorovodTerms, TooManyLost
from forebay.driver.horovod.liveness import Lost
from forebay.driver.worker_main import Outcome
from forebay.errors import Hung
from forebay.events import Failed, Started

Happens = Callable[[], Message | None]


class Remote:
    """The coordinator's methods as an actor's are called; each has answered when the call returns."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: asyncio.run(getattr(self._coordinator, name)(*args)))


class ToldCrew:
    """Workers "0", "1", ..., all warm, of whom the first `size` train; what happens to them is given."""

    def __init__(self, size: int, waiting: Sequence[str] = ()) -> None:
        names = tuple(str(rank) for rank in range(size))
        self.members = {
            name: PoolWorker(name=name, asked_at=0.0, state="warm", node="n") for name in (*names, *waiting)
        }
        self.world: HorovodWorld | None = HorovodWorld(number=1, names=names, rendezvous=None)
        self.happens: list[Happens] = []

    def hear(self, wait_s: float) -> Message | None:
        message = self.happens.pop(0)() if self.happens else None
        time.sleep(0.01)
        match message:
            case Lost():
                del self.members[message.name]
            case Answered() if self.world is not None:
                self.world.note(message)
        return message

    def ask_for(self, count: int) -> None: ...

    def dismiss(self, names: Sequence[str]) -> None:
        for name in names:
            del self.members[name]

    def end_world(self) -> None:
        self.world = None


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_conductor, "ray", SimpleNamespace(get=lambda answer: answer))
    monkeypatch.setattr(horovod_conductor, "draining_nodes", dict)


def begun(size: int) -> Coordinator:
    coordinator = coordinator_of(size)
    asyncio.run(coordinator.begin(size))
    asyncio.run(coordinator.report(Started(name="a", world_size=size, epochs=4, num_batches=8)))
    asyncio.run(coordinator.take(0))
    return coordinator


def conduct(crew: ToldCrew, coordinator: Coordinator, *, max_failures: int = 3, hang_timeout_s: float = 60.0) -> None:
    terms = HorovodTerms(name="a", min_workers=1, max_failures=max_failures, hang_timeout_s=hang_timeout_s)
    HorovodController(terms, crew, Remote(coordinator)).conduct()


def parting(coordinator: Coordinator, world_size: int) -> int | None:
    return asyncio.run(coordinator.orders()).resize_to(world_size)


def done(rank: int, parting: int | None = None) -> Happens:
    return lambda: Answered(name=str(rank), world=1, answer=Outcome(parting=parting))


def test_order_to_part_outlives_the_loss_of_a_waiting_worker() -> None:
    coordinator, crew = begun(2), ToldCrew(2, ["next", "late"])
    asyncio.run(coordinator.set_target(4))
    found: list[Any] = []

    def look() -> None:
        found.append((parting(coordinator, 2), asyncio.run(coordinator.status()).state))

    crew.happens = [lambda: None, look, lambda: Lost(name="late"), look, done(0), done(1)]
    conduct(crew, coordinator)
    assert found == [(4, "resizing"), (3, "resizing")], "the other one that waits is ready"
    told = asyncio.run(coordinator.take(0)).events
    assert list(told) == [Failed(error="lost a waiting worker", failures=1, will_retry=True)]


def test_shrink_that_is_taken_back_is_forgotten() -> None:
    coordinator, crew = begun(2), ToldCrew(2)
    found: list[int | None] = []

    def change_mind() -> None:
        asyncio.run(coordinator.set_target(1))
        found.append(parting(coordinator, 2))
        asyncio.run(coordinator.set_target(2))

    crew.happens = [change_mind, lambda: found.append(parting(coordinator, 2)), done(0), done(1)]
    conduct(crew, coordinator)
    assert found == [1, None]


def test_waiting_workers_may_not_be_lost_for_ever() -> None:
    crew = ToldCrew(1, ["next"])
    crew.happens = [lambda: Lost(name="next")]
    with pytest.raises(TooManyLost, match="lost a waiting worker"):
        conduct(crew, begun(1), max_failures=0)


def test_rank_that_hangs_when_the_others_are_done_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(horovod_conductor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    crew = ToldCrew(3)
    crew.happens = [done(2), done(0), lambda: now.append(now.pop() + 61.0)]
    with pytest.raises(Hung, match=r"rank 1 of run 'a' hung") as hung:
        conduct(crew, begun(3))
    assert hung.value.ranks == [1]
