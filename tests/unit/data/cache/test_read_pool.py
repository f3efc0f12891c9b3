"""Threads of data workers that follow what their reads take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from forebay.data.cache.cpu_share import DataWorkers
from forebay.data.cache.read_pool import ReadPool
from forebay.data.cache.reads_in_flight import ReadBounds

LATENCY_S = 0.02


class DistantStore:
    """Reads that take 20 ms however many there are. `most_inside` ran at once."""

    def __init__(self, workers: DataWorkers) -> None:
        self._lock = threading.Lock()
        self._num_inside = self.most_inside = 0
        self.pool: ReadPool[int, int] = ReadPool(self._read, workers)

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
