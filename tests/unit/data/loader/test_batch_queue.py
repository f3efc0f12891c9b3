"""The queue of finished batches: bounded, in order, and closing it releases both sides."""

from __future__ import annotations

import threading

import pytest

from forebay.data.loader.batch import Batch
from forebay.data.loader.batch_queue import BatchQueue
from forebay.errors import LoaderClosed


def batch(number: int) -> Batch:
    return Batch({}, position=number)


def test_holds_at_most_its_limit_but_always_one() -> None:
    ready, put = BatchQueue(limit_bytes=100), []

    def produce() -> None:
        for number, size in enumerate((60, 40, 1, 500, 10)):
            ready.put(batch(number), size)
            put.append(number)
        ready.put(None)

    producer = threading.Thread(target=produce)
    producer.start()
    seen = []
    while (item := ready.get()) is not None:
        seen.append(item.position)
        producer.join(0.05)
        assert ready.held_bytes <= 500
        assert ready.held_bytes <= 100 or 3 not in seen
        assert max(put, default=0) <= {0: 2, 1: 2, 2: 3, 3: 4, 4: 4}[item.position]
    producer.join()
    assert seen == [0, 1, 2, 3, 4]


def test_close_frees_both_sides() -> None:
    ready, ended = BatchQueue(limit_bytes=1), []
    ready.put(batch(0), 5)

    def wait(call: object, *arguments: object) -> None:
        with pytest.raises(LoaderClosed):
            call(*arguments)  # type: ignore[operator]
        ended.append(call)

    empty = BatchQueue(limit_bytes=1)
    threads = [
        threading.Thread(target=wait, args=(ready.put, batch(1), 5)),
        threading.Thread(target=wait, args=(empty.get,)),
    ]
    for thread in threads:
        thread.start()
    ready.close()
    empty.close()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 2
    assert ready.held_bytes == 0


def test_an_error_is_raised_where_the_batch_would_have_been() -> None:
    ready = BatchQueue(limit_bytes=100)
    ready.put(batch(0), 1)
    ready.put(KeyError("x"))
    assert ready.get() is not None
    with pytest.raises(KeyError):
        ready.get()


def test_a_full_queue_wakes_its_producer_once_for_several_batches() -> None:
    ready, put = BatchQueue(limit_bytes=100), []
    for number in range(10):
        ready.put(batch(number), 10)

    def produce() -> None:
        for number in range(10, 13):
            ready.put(batch(number), 10)
            put.append(number)

    producer = threading.Thread(target=produce)
    producer.start()
    while not ready._num_waiting:
        producer.join(0.01)
    for _ in range(2):
        assert ready.get() is not None
        producer.join(0.1)
        assert put == []
    assert ready.get() is not None
    producer.join(60)
    assert put == [10, 11, 12]
    left = [ready.get() for _ in range(10)]
    assert [getattr(item, "position", None) for item in left] == [*range(3, 13)]
