"""Messages pass once and in order. An attempt begins once all its workers are there, and ends once all have left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from forebay.events import EpochEnded, Failed, Finished, Preempted, Reported, Request, Started
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.driver.elastic.phase import Aborted, Ended, Raised, Resizing, Starting
from forebay.training.driver.worker_error import WorkerError
from forebay.training.runs.status import RunStatus
from forebay.training.state.known_reports import KnownReports

EVENTS = [Finished(name=name, path="/runs") for name in "abc"]


def coordinator_of(workers: int, least: int = 1, most: int = 8, max_failures: int = 3) -> Coordinator:
    return Coordinator(
        RunStatus(
            name="a",
            driver="ray",
            target=workers,
            min_workers=least,
            max_workers=most,
            epochs=4,
            started_at=1.0,
            node="n",
            path="/runs/a",
        ),
        max_failures,
    )


async def waits(doing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task and check that it does not finish at once."""
    task = asyncio.create_task(doing)
    await asyncio.sleep(0.01)
    assert not task.done()
    return task


async def joined(workers: int) -> Coordinator:
    coordinator = coordinator_of(workers)
    await asyncio.gather(*(coordinator.join(rank, f"worker {rank}") for rank in range(workers)))
    await coordinator.report(Started(name="a", world_size=workers, epochs=4, num_batches=8))
    await coordinator.take(0)
    return coordinator


def ended(epoch: int) -> EpochEnded:
    spent = dict.fromkeys(("seconds", "wait_s", "eval_s", "checkpoint_s"), 1.0)
    return EpochEnded(epoch=epoch, step=8, metrics={}, rows=8, **spent)


def test_results_that_the_driver_has_or_gets_are_known() -> None:
    async def talk() -> None:
        begun = coordinator_of(1)
        assert not await begun.knows(ended(0))
        await begun.report(ended(0))
        assert await begun.knows(ended(0)), "though the driver has not taken it"
        continued = Coordinator(await begun.status(), known=KnownReports([ended(0)]))
        assert await continued.knows(ended(0)) and not await continued.knows(ended(1))

    asyncio.run(talk())


def test_events_are_taken_once_in_order() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(1)
        assert [await coordinator.report(event) for event in EVENTS] == [1, 2, 3]
        assert await coordinator.take(0) == (EVENTS, Request(target=1))
        assert list((await coordinator.take(0))[0]) == []
        assert await coordinator.report(*EVENTS) == 6
        assert (await coordinator.take(0))[0] == EVENTS

    asyncio.run(talk())


def test_taking_waits_for_the_first_event_only() -> None:
    async def talk() -> float:
        coordinator = coordinator_of(1)
        taking = await waits(coordinator.take(600.0))
        began = time.monotonic()
        await coordinator.report(EVENTS[0])
        assert list((await taking)[0]) == EVENTS[:1]
        assert list((await coordinator.take(0.05))[0]) == []
        return time.monotonic() - began

    assert asyncio.run(talk()) < 60.0


def test_what_others_ask_is_news_to_the_driver_and_what_it_asked_itself_is_not() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(2)
        assert await coordinator.set_target(3) == 3
        taking = await waits(coordinator.take(5.0))
        assert await coordinator.set_target(99, "cli") == 8, "beyond the bounds of the run"
        assert (await taking)[1].target == 8
        taking = await waits(coordinator.take(5.0))
        await coordinator.request_stop("enough", "cli")
        await coordinator.request_stop("again", "cli")
        assert (await taking)[1].stop == "enough"
        assert (await coordinator.status()).state == "stopping"
        assert await coordinator.target() == 8

    asyncio.run(talk())


def test_run_that_is_to_stop_is_given_up_where_nobody_trains() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(2)
        assert not await coordinator.give_up(), "nobody asked for a stop"
        joining = await waits(coordinator.join(0, "worker 0"))
        await coordinator.request_stop("enough")
        assert await coordinator.give_up()
        assert await joining is None and isinstance((await coordinator.view()).phase, Ended)
        coordinator = await joined(2)
        await coordinator.request_stop("enough")
        assert not await coordinator.give_up(), "they are to commit first"
        await coordinator.record_failure("worker 1 died")
        assert await coordinator.give_up()
        coordinator = await joined(2)
        await coordinator.complete(None)
        await coordinator.request_stop("enough")
        await coordinator.record_failure("worker 1 died")
        assert not await coordinator.give_up(), "it has come to its end"

    asyncio.run(talk())


def test_attempt_begins_when_all_have_joined() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(2)
        first = await waits(coordinator.join(0, "worker 0"))
        assert await coordinator.join(1, "worker 1")
        assert await first
        assert await coordinator.workers() == {0: "worker 0", 1: "worker 1"}

    asyncio.run(talk())


def test_next_attempt_has_other_workers_and_may_have_another_size() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        await coordinator.record_failure("lost worker 1")
        await coordinator.begin(2)
        waiting = await waits(coordinator.join(1, "new 1"))
        assert await coordinator.join(0, "new 0"), "an old worker was counted"
        assert await waiting
        assert list((await coordinator.take(0))[0]) == [Failed(error="lost worker 1", failures=1, will_retry=True)]
        await coordinator.begin(1)
        assert await coordinator.join(0, "alone")

    asyncio.run(talk())


def test_survivor_that_notices_late_still_finds_its_peers_and_its_error_does_not_end_the_run() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(2)
        number, _ = await asyncio.gather(coordinator.join(0, "worker 0"), coordinator.join(1, "worker 1"))
        assert number is not None
        asking = await waits(coordinator.missing(0, 5.0))
        await coordinator.record_failure("lost worker 1")
        await asyncio.wait_for(asking, 1.0)
        assert await coordinator.workers() == {0: "worker 0", 1: "worker 1"}
        late = WorkerError(rank=0, summary="RuntimeError: gloo", traceback="", pickled=None)
        await coordinator.raise_error(late, number)
        assert await coordinator.cause() is None
        await coordinator.begin(1)
        assert await coordinator.workers() == {}
        await coordinator.raise_error(late, number)
        assert await coordinator.cause() is None
        following = await coordinator.join(0, "worker 0")
        assert following is not None
        await coordinator.raise_error(late, following)
        assert await coordinator.cause() == Raised(error=late)

    asyncio.run(talk())


def test_worker_does_not_wait_for_one_that_was_lost_before_it_joined() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(2)
        waiting = await waits(coordinator.join(0, "worker 0"))
        await coordinator.record_failure("lost worker 1")
        assert await asyncio.wait_for(waiting, 1.0) is None
        assert await coordinator.abort() == {0: "worker 0"}, "not ended with the run"

    asyncio.run(talk())


def test_growing_waits_for_the_next_workers_and_shrinking_for_nobody() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        await coordinator.set_target(3)
        assert await coordinator.request() == Request(), "told to part before the next workers were ready"
        await coordinator.resize(3)
        assert (await coordinator.request()).target == 3
        assert (await coordinator.status()).state == "resizing"
        await coordinator.resize(None)
        assert (await coordinator.request()).target is None
        assert (await coordinator.status()).state == "training"
        await coordinator.set_target(1)
        assert (await coordinator.request()).target == 1
        assert (await coordinator.status()).state == "resizing"

    asyncio.run(talk())


def test_shrink_asked_at_the_end_of_an_epoch_is_obeyed_there_by_workers_that_never_join() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(4)
        await coordinator.begin(3)
        await coordinator.set_target(2)
        assert await coordinator.request() == Request(), "told to part before it trained"
        await coordinator.report(Started(name="a", world_size=3, epochs=4, num_batches=8))
        ended = EpochEnded(epoch=0, step=3, metrics={}, rows=48, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)
        number = await coordinator.report(ended)
        syncing = await waits(coordinator.synced_request(number))
        await coordinator.set_target(1)
        await coordinator.noted(number)
        assert (await syncing).target == 1
        await coordinator.begin(1)
        assert await coordinator.request() == Request()

    asyncio.run(talk())


def test_loss_of_a_waiting_worker_leaves_those_alone_who_train() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        await coordinator.resize(3)
        await coordinator.record_failure("lost a waiting worker", world_goes_on=True)
        lost = Failed(error="lost a waiting worker", failures=1, will_retry=True)
        assert list((await coordinator.take(0))[0]) == [lost]
        assert (await coordinator.request()).target == 3
        assert (await coordinator.status()).state == "resizing"
        assert await coordinator.workers() == {0: "worker 0", 1: "worker 1"}

    asyncio.run(talk())


def test_workers_may_resize_a_world_of_the_same_size() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        await coordinator.resize(2)
        assert (await coordinator.request()).target == 2
        assert not await coordinator.all_paused(0)
        await coordinator.pause(1)
        waiting = await waits(coordinator.all_paused(5.0))
        await coordinator.pause(0)
        assert await waiting
        view = await coordinator.view()
        assert view.has_paused and view.phase == Resizing(resize_to=2)
        await coordinator.begin(2)
        assert (await coordinator.view()).phase == Starting(after="resize")
        assert (await coordinator.request()).target is None

    asyncio.run(talk())


def test_synced_request_wait_until_callbacks_have_heard_what_was_reported() -> None:
    async def talk() -> None:
        coordinator = await joined(1)
        number = await coordinator.report(EVENTS[0])
        syncing = await waits(coordinator.synced_request(number))
        await coordinator.take(0)
        await coordinator.set_batch(64)
        await coordinator.noted(number)
        assert await syncing == Request(global_batch=64)

    asyncio.run(talk())


def test_a_bell_rings_when_something_else_is_asked_or_the_attempt_is_over() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        asks: list[tuple[Callable[[], Awaitable[None]], Request]] = [
            (lambda: coordinator.set_batch(64), Request()),
            (lambda: coordinator.resize(3), Request(global_batch=64)),
            (lambda: coordinator.resize(None), Request(global_batch=64, target=3)),
            (lambda: coordinator.request_stop("enough"), Request(global_batch=64)),
            (lambda: coordinator.begin(2), Request(global_batch=64, stop="enough")),
        ]
        for ask, known in asks:
            assert await coordinator.request() == known
            bell = await waits(coordinator.changed(known))
            await coordinator.report(EVENTS[0])
            assert not bell.done()
            await ask()
            await asyncio.wait_for(bell, 5.0)
        await asyncio.wait_for(coordinator.changed(Request()), 5.0)

    asyncio.run(talk())


def test_ending_run_turns_workers_away_and_is_not_retried() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(2)
        waiting = await waits(coordinator.join(0, "worker 0"))
        syncing = await waits(coordinator.synced_request(1))
        assert await coordinator.abort() == {0: "worker 0"}
        assert not await waiting
        await syncing
        assert not await coordinator.join(1, "worker 1")
        assert (await coordinator.view()).phase == Ended(cause=Aborted())
        await coordinator.record_failure("lost worker 0")
        assert not await coordinator.join(0, "worker 0")

    asyncio.run(talk())


def test_first_exception_is_the_cause() -> None:
    async def talk() -> None:
        coordinator = coordinator_of(1)
        number = await coordinator.join(0, "worker 0")
        assert number is not None
        assert await coordinator.cause() is None
        for rank in (1, 0):
            error = WorkerError(rank=rank, summary="ValueError", traceback="", pickled=None)
            await coordinator.raise_error(error, number)
        cause = await coordinator.cause()
        assert isinstance(cause, Raised) and cause.error.rank == 1

    asyncio.run(talk())


def test_ranks_that_wait_in_vain_find_out_for_whom() -> None:
    async def talk() -> None:
        coordinator = await joined(3)
        answers = await asyncio.gather(coordinator.missing(0, 0.1), coordinator.missing(2, 0.1))
        assert answers == [[1], [1]]

    asyncio.run(talk())


def test_status_follows_the_events() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        status = await coordinator.status()
        assert (status.state, status.world_size, status.last_commit_step) == ("training", 2, None)
        for step, rows in ((1, 16), (2, 32)):
            await coordinator.report(Reported(step=step, epoch=1, position=rows, metrics={}, rows=rows))
        await coordinator.request()
        status = await coordinator.status()
        assert (status.epoch, status.step, status.position, status.last_commit_step) == (1, 2, 32, 2)
        assert status.rows_per_s > 0
        assert status.last_commit_age_s is not None and status.last_commit_age_s < 10
        ended = EpochEnded(epoch=1, step=3, metrics={}, rows=48, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)
        await coordinator.report(ended)
        status = await coordinator.status()
        assert (status.epoch, status.position, status.step) == (2, 0, 3)
        await coordinator.record_failure("lost worker 1")
        assert (await coordinator.status()).state == "failed-over"
        await coordinator.draining(["node", "other"], 2, 5.0)
        assert (await coordinator.take(0))[0][-1] == Preempted(
            node="node", workers=2, deadline_s=5.0, others=("other",)
        )

    asyncio.run(talk())


class CountingLoop(asyncio.SelectorEventLoop):
    """Event loop that counts its callbacks."""

    num_callbacks = 0

    def call_soon(self, *args: Any, **named: Any) -> asyncio.Handle:
        self.num_callbacks += 1
        return super().call_soon(*args, **named)


def test_work_for_a_whole_world_grows_as_its_ranks() -> None:
    async def live(ranks: int) -> int:
        dead, asked = {3, 5}, list[int]()

        async def is_alive(worker: int) -> bool:
            asked.append(worker)
            await asyncio.sleep(0)
            return worker not in dead

        coordinator = coordinator_of(ranks, most=ranks)
        coordinator._is_alive = is_alive
        await asyncio.gather(*(coordinator.join(rank, rank) for rank in range(ranks)))
        await coordinator.report(Started(name="a", world_size=ranks, epochs=1, num_batches=1))
        await coordinator.resize(ranks // 2)
        pausing = [coordinator.pause(rank) for rank in range(ranks)]
        assert (await asyncio.gather(coordinator.all_paused(60.0), *pausing))[0]
        silent = ranks - 1
        assert await asyncio.gather(*(coordinator.missing(rank, 0.2) for rank in range(silent))) == [[silent]] * silent
        assert await asyncio.gather(*(coordinator.lost(60.0) for _ in range(ranks))) == [sorted(dead)] * ranks
        return len(asked)

    def callbacks(ranks: int) -> int:
        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            assert runner.run(live(ranks)) <= 2 * ranks, "ranks asked each other"
            loop = runner.get_loop()
            assert isinstance(loop, CountingLoop)
            return loop.num_callbacks

    assert callbacks(512) <= 10 * callbacks(64), "8 times the ranks cost more than n log n"


def test_a_death_that_one_look_passed_over_is_found_by_the_next() -> None:
    async def talk() -> None:
        dead, may_answer = set[str](), asyncio.Event()

        async def is_alive(worker: str) -> bool:
            is_dead = worker in dead
            await may_answer.wait()
            return not is_dead

        coordinator = await joined(2)
        coordinator._is_alive = is_alive
        first = await waits(coordinator.lost(60.0))
        dead.add("worker 1")
        second = await waits(coordinator.lost(60.0))
        may_answer.set()
        assert (await first, await second) == ([], [1])

    asyncio.run(talk())


def test_nobody_waits_in_a_world_that_begins_after_the_end() -> None:
    async def talk() -> None:
        coordinator = await joined(2)
        await coordinator.raise_error(WorkerError(rank=0, summary="ValueError", traceback="", pickled=None))
        await coordinator.begin(2)
        assert await asyncio.wait_for(coordinator.join(0, "new 0"), 1.0) is None

    asyncio.run(talk())


def test_a_look_of_the_world_before_finds_the_lost_of_this_one() -> None:
    async def is_alive(worker: Any) -> bool:
        return bool(worker != "dead")

    async def talk() -> None:
        coordinator = coordinator_of(2)
        coordinator._is_alive = is_alive
        await asyncio.gather(coordinator.join(0, "a"), coordinator.join(1, "b"))
        assert await coordinator.lost(5.0) == []
        early = await waits(coordinator.lost(5.0))  # the next look begins 0.2 s after the last one
        await coordinator.begin(2)
        await asyncio.gather(coordinator.join(0, "c"), coordinator.join(1, "dead"))
        assert await coordinator.lost(5.0) == [1]
        assert await early == []

    asyncio.run(talk())
