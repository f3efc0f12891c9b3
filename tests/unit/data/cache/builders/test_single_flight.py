"""Worker threads: order, shared work, errors, cancelling and closing."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait

import pytest
from tests.waiting import until

from forebay.data.cache.builders.single_flight import SingleFlightPool
from forebay.errors import Cancelled, LimitReached, LoaderClosed


class Work:
    """Records its tasks. Tasks from 100 on wait for `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.done: list[int] = []

    def __call__(self, task: int) -> list[int]:
        self.done.append(task)
        if task >= 100:
            self.go.wait(120)
        if task < 0:
            raise ValueError(task)
        return [task]


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.go.set()


def test_tasks_start_in_the_order_of_requests(work: Work) -> None:
    workers = SingleFlightPool(work, num_threads=1)
    futures = [workers.submit(task) for task in (5, 3, 9, 1)]
    assert [future.result(60) for future in futures] == [[5], [3], [9], [1]]
    assert work.done == [5, 3, 9, 1]
    workers.close(5)


def test_what_is_peek_wakes_no_thread(work: Work) -> None:
    before = threading.active_count()
    workers = SingleFlightPool(work, num_threads=2, peek=lambda task: [0] if task == 3 else None)
    assert workers.submit(3).result(0) == [0] and not work.done and threading.active_count() == before
    assert workers.submit(4).result(60) == [4]
    workers.close(5)
    with pytest.raises(LoaderClosed):
        workers.submit(3)


def test_open_requests_for_one_task_share_its_run(work: Work) -> None:
    workers = SingleFlightPool(work, num_threads=2)
    first, second, other = workers.submit(100), workers.submit(100), workers.submit(1)
    assert other.result(60) == [1]
    assert first.cancel(), "one who lost interest"
    work.go.set()
    assert second.result(60) == [100]
    assert first.cancelled()
    assert work.done.count(100) == 1
    assert workers.submit(100).result(60) == [100], "a finished task is run again when asked for again"
    assert work.done.count(100) == 2
    workers.close(5)


def test_no_thread_before_the_first_request_and_no_more_than_allowed(work: Work) -> None:
    before = threading.active_count()
    workers = SingleFlightPool(work, num_threads=3)
    assert threading.active_count() == before
    futures = [workers.submit(task) for task in range(100, 110)]
    until(lambda: len(work.done) == 3)
    assert threading.active_count() == before + 3
    work.go.set()
    wait(futures, 60)
    workers.close(60)
    assert threading.active_count() == before


def test_every_thread_prepares_itself_first_and_more_may_start_later(work: Work) -> None:
    prepared: list[int] = []
    workers = SingleFlightPool(work, num_threads=1, on_start=lambda: prepared.append(threading.get_ident()))
    futures = [workers.submit(task) for task in range(100, 103)]
    until(lambda: work.done == [100])
    workers.resize(3)
    futures += [workers.submit(task) for task in range(103, 106)]
    until(lambda: len(work.done) == 3)
    work.go.set()
    wait(futures, 60)
    assert len(set(prepared)) == len(prepared) == 3
    workers.close(5)


def test_a_higher_limit_starts_threads_for_what_is_queued(work: Work) -> None:
    workers = SingleFlightPool(work, num_threads=1)
    futures = [workers.submit(task) for task in range(100, 104)]
    until(lambda: work.done == [100])
    workers.resize(3)
    until(lambda: len(work.done) == 3)
    work.go.set()
    wait(futures, 60)
    workers.close(60)


def test_a_lower_limit_ends_no_task_and_begins_no_more_than_it_allows() -> None:
    goes = {task: threading.Event() for task in range(6)}
    begun: list[int] = []

    def run(task: int) -> int:
        begun.append(task)
        assert goes[task].wait(120)
        return task

    workers = SingleFlightPool(run, num_threads=3)
    futures = [workers.submit(task) for task in range(6)]
    until(lambda: len(begun) == 3)
    workers.resize(1)
    for task in (0, 1):
        goes[task].set()
        futures[task].result(60)
    assert begun == [0, 1, 2], "one still runs"
    goes[2].set()
    until(lambda: len(begun) == 4)
    workers.resize(2)
    until(lambda: len(begun) == 5)
    for go in goes.values():
        go.set()
    assert [future.result(60) for future in futures] == list(range(6))
    workers.close(60)


def test_idle_thread_is_used_again(work: Work) -> None:
    before = threading.active_count()
    workers = SingleFlightPool(work, num_threads=8)
    for task in range(20):
        workers.submit(task).result(60)
        until(lambda: workers._num_idle == len(workers._threads))
    assert threading.active_count() == before + 1
    workers.close(5)


def test_an_error_reaches_every_request(work: Work) -> None:
    workers = SingleFlightPool(work, num_threads=1)
    blocker, one, two = workers.submit(100), workers.submit(-1), workers.submit(-1)
    work.go.set()
    assert blocker.result(60) == [100]
    for future in (one, two):
        with pytest.raises(ValueError, match="-1"):
            future.result(60)
    assert workers.submit(4).result(60) == [4], "and the thread goes on"
    workers.close(5)


def test_cancelled_task_is_not_run(work: Work) -> None:
    workers = SingleFlightPool(work, num_threads=1)
    blocker, doomed = workers.submit(100), workers.submit(7)
    assert doomed.cancel()
    work.go.set()
    blocker.result(60)
    assert workers.submit(8).result(60) == [8]
    assert work.done == [100, 8]
    workers.close(5)


def test_close_cancels_pending_tasks_and_wakes_waiting_threads(work: Work) -> None:
    workers = SingleFlightPool(work, num_threads=1)
    stuck, queued = workers.submit(100), workers.submit(2)
    until(lambda: work.done == [100])
    outcome: list[BaseException | None] = []

    def wait_for(future: Future[list[int]]) -> None:
        try:
            future.result(30)
        except CancelledError as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait_for, args=(stuck,))
    waiting.start()
    start = time.monotonic()
    workers.close(0.3)
    assert 0.3 <= time.monotonic() - start < 20.0, "a stuck thread is waited for, but not longer"
    waiting.join(20)
    assert len(outcome) == 1
    assert queued.cancelled()
    assert not wait([stuck, queued], 1).not_done
    with pytest.raises(LoaderClosed):
        workers.submit(3)
    work.go.set()
    workers.close(5)
    assert work.done == [100]


def test_idle_thread_keeps_no_result_alive() -> None:
    class Big:
        pass

    workers: SingleFlightPool[int, Big] = SingleFlightPool(lambda task: Big(), num_threads=1)
    result = workers.submit(1).result(60)
    until(lambda: workers._num_idle == 1)
    gone = weakref.ref(result)
    del result
    gc.collect()
    assert gone() is None
    workers.close(5)


def test_work_that_raises_cancelled_is_cancelled() -> None:
    def work(task: int) -> int:
        raise Cancelled("told to end")

    workers = SingleFlightPool(work, num_threads=1)
    future = workers.submit(1)
    with pytest.raises(CancelledError):
        future.result(30)
    workers.close(5)


def test_a_thread_that_cannot_be_started_loses_no_task(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = SingleFlightPool(work, num_threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(LimitReached, match="limit on processes"):
            workers.submit(1)
    busy = workers.submit(100)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        late = workers.submit(2)
    work.go.set()
    assert late.result(30) and busy.result(30)
    workers.close(5)
