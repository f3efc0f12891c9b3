"""Word is passed on once and in order; an attempt begins when all of its workers are there."""

from __future__ import annotations

import asyncio
import time

from forebay.driver.coordinator import Coordinator
from forebay.driver.raised import Raised
from forebay.train.events import Failed, Finished

EVENTS = [Finished(name=name, path="/runs") for name in "abc"]


def test_events_are_taken_once_in_order() -> None:
    async def talk() -> None:
        coordinator = Coordinator(1)
        for event in EVENTS:
            await coordinator.report(event)
        assert list(await coordinator.take(0)) == EVENTS
        assert list(await coordinator.take(0)) == []

    asyncio.run(talk())


def test_taking_waits_for_the_first_event_only() -> None:
    async def talk() -> float:
        coordinator = Coordinator(1)
        taking = asyncio.create_task(coordinator.take(5.0))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await coordinator.report(EVENTS[0])
        assert list(await taking) == EVENTS[:1]
        assert list(await coordinator.take(0.05)) == []
        return time.monotonic() - began

    assert asyncio.run(talk()) < 1.0


def test_attempt_begins_when_all_have_joined() -> None:
    async def talk() -> None:
        coordinator = Coordinator(2)
        first = asyncio.create_task(coordinator.join(0, "worker 0"))
        await asyncio.sleep(0.01)
        assert not first.done()
        assert await coordinator.join(1, "worker 1")
        assert await first
        assert await coordinator.workers() == {0: "worker 0", 1: "worker 1"}

    asyncio.run(talk())


def test_next_attempt_has_other_workers() -> None:
    async def talk() -> None:
        coordinator = Coordinator(2)
        await asyncio.gather(coordinator.join(0, "old 0"), coordinator.join(1, "old 1"))
        await coordinator.lost_workers("lost worker 1")
        waiting = asyncio.create_task(coordinator.join(1, "new 1"))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "an old worker was counted"
        assert await coordinator.join(0, "new 0")
        assert await waiting
        assert list(await coordinator.take(0)) == [Failed(error="lost worker 1", failures=1, will_retry=True)]

    asyncio.run(talk())


def test_ending_run_turns_workers_away_and_is_not_retried() -> None:
    async def talk() -> None:
        coordinator = Coordinator(2)
        waiting = asyncio.create_task(coordinator.join(0, "worker 0"))
        await asyncio.sleep(0.01)
        assert await coordinator.end() == {0: "worker 0"}
        assert not await waiting
        assert not await coordinator.join(1, "worker 1")
        assert not await coordinator.may_retry()
        await coordinator.lost_workers("lost worker 0")
        assert not await coordinator.join(0, "worker 0")

    asyncio.run(talk())


def test_first_exception_is_the_cause() -> None:
    async def talk() -> None:
        coordinator = Coordinator(2)
        assert await coordinator.may_retry()
        for rank in (1, 0):
            await coordinator.raise_error(Raised(rank=rank, summary="ValueError", traceback="", pickled=None))
        raised = await coordinator.raised()
        assert raised is not None and raised.rank == 1
        assert not await coordinator.may_retry()

    asyncio.run(talk())
