"""Pool of data workers: reads follow what they take, and the earliest task has the cores first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from forebay.data.cache.builders.block_pool import BlockPool, CpuShare
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.builders.reads_in_flight import ReadBounds
from forebay.errors import Cancelled

LATENCY_S = 0.02


class DistantStore:
    """Reads that take 20 ms however many there are. `most_inside` ran at once."""

    def __init__(self, workers: DataWorkers) -> None:
        self._lock = threading.Lock()
        self._num_inside = self.most_inside = 0
        self.pool: BlockPool[int, int] = BlockPool(self._read, workers)

    def _read(self, task: int) -> int:
        began_s = time.monotonic()
        with self._lock:
            self._num_inside += 1
            self.most_inside = max(self.most_inside, self._num_inside)
        time.sleep(LATENCY_S)
        with self._lock:
            self._num_inside -= 1
        self.pool.record_read(began_s, 0.0, 1000)
        return task


@contextmanager
def distant_store(workers: DataWorkers) -> Iterator[DistantStore]:
    store = DistantStore(workers)
    yield store
    store.pool.close(60.0)


def results(futures: list[Future[int]]) -> list[int]:
    return [future.result(60) for future in futures]


def test_more_reads_from_a_distant_store() -> None:
    with distant_store(DataWorkers(num_reads="auto")) as store:
        assert store.pool.num_reads == 8
        assert results([store.pool.submit(task) for task in range(600)]) == list(range(600))
        assert store.most_inside > 16
        assert store.pool.num_reads <= 128


def test_never_more_than_the_bounds_or_a_fixed_number() -> None:
    bounded = DataWorkers(num_reads="auto", auto_reads=ReadBounds(start=2, least=2, most=5))
    for workers, most in ((bounded, 5), (DataWorkers(num_reads=3), 3)):
        with distant_store(workers) as store:
            results([store.pool.submit(task) for task in range(60)])
            assert store.most_inside <= most


def test_new_limits_apply_at_once_in_both_directions() -> None:
    with distant_store(DataWorkers(num_reads=2)) as store:
        results([store.pool.submit(task) for task in range(4)])
        store.pool.apply(DataWorkers(num_reads="auto"))
        assert store.pool.num_reads == 8
        results([store.pool.submit(task) for task in range(100)])
        assert store.most_inside >= 8
        store.pool.apply(DataWorkers(num_reads=1))
        store.most_inside = 0
        assert results([store.pool.submit(task) for task in range(5)]) == list(range(5))
        assert (store.most_inside, store.pool.num_reads) == (1, 1)


class Queue:
    """Threads that take tickets of `cores` in a given order and record their admission. Each stays until released."""

    def __init__(self, cores: CpuShare) -> None:
        self.cores = cores
        self.entered: list[int] = []
        self.refused: list[int] = []
        self.leave = [threading.Event() for _ in range(8)]
        self.threads: list[threading.Thread] = []

    def add(self, number: int, rounds: int = 1) -> None:
        lined_up = threading.Event()

        def visit() -> None:
            self.cores.take_ticket()
            lined_up.set()
            for _ in range(rounds):
                try:
                    with self.cores:
                        self.entered.append(number)
                        self.leave[number].wait(120)
                except Cancelled:
                    self.refused.append(number)

        self.threads.append(threading.Thread(target=visit))
        self.threads[-1].start()
        assert lined_up.wait(60)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, (self.entered, self.refused)
            time.sleep(0.001)

    def join(self) -> None:
        for event in self.leave:
            event.set()
        for thread in self.threads:
            thread.join(60)


def num_waiting(queue: Queue) -> int:
    return len(queue.cores._waiting)


def test_no_more_than_so_many_at_once_and_the_first_in_line_comes_next() -> None:
    queue = Queue(CpuShare(2))
    for number in range(6):
        queue.add(number)
        queue.until(lambda wanted=number + 1: len(queue.entered) + num_waiting(queue) == wanted)
    assert queue.entered == [0, 1]
    for number in range(4):
        queue.leave[number].set()
        queue.until(lambda wanted=number + 3: len(queue.entered) == wanted)
    assert queue.entered == [0, 1, 2, 3, 4, 5]
    queue.join()


def test_a_thread_that_returns_for_its_task_precedes_later_ones() -> None:
    """A built block is written before another block is decoded."""
    queue = Queue(CpuShare(1))
    queue.add(0, rounds=2)
    queue.until(lambda: queue.entered == [0])
    queue.add(1, rounds=2)
    queue.until(lambda: num_waiting(queue) == 1)
    queue.add(2)
    queue.until(lambda: num_waiting(queue) == 2)
    queue.leave[0].set()
    queue.until(lambda: len(queue.entered) == 3)
    assert sorted(queue.entered) == [0, 0, 1], "2 came last and waits, whenever 0 got in again"
    queue.join()
    assert queue.entered[-1] == 2


def test_more_are_let_in_after_it_was_made_larger() -> None:
    queue = Queue(CpuShare(1))
    for number in range(3):
        queue.add(number)
    queue.until(lambda: len(queue.entered) + num_waiting(queue) == 3)
    assert len(queue.entered) == 1
    queue.cores.resize(3)
    queue.until(lambda: len(queue.entered) == 3)
    queue.join()


def test_close_ends_all_waits() -> None:
    queue = Queue(CpuShare(1))
    for number in range(3):
        queue.add(number)
    queue.until(lambda: num_waiting(queue) == 2)
    queue.cores.close()
    queue.until(lambda: len(queue.refused) == 2)
    with pytest.raises(Cancelled), queue.cores:
        pass
    queue.join()
    assert len(queue.entered) == 1


def test_an_error_inside_gives_the_core_back() -> None:
    cores = CpuShare(1)
    with pytest.raises(ValueError, match="boom"), cores:
        raise ValueError("boom")
    with cores:
        pass
