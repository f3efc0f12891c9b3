"""Threads of a gather: how many, for which batches, and that none is left."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from forebay.data.loader import gather_threads
from forebay.data.loader.gather_threads import GatherThreads
from forebay.data.plan.order import PositionedRows
from forebay.errors import InvalidOption, LimitReached

ROWS = 1000


def gathered(threads: GatherThreads, row_bytes: int) -> bool:
    """Whether a gather of random rows is right."""
    rng = np.random.default_rng(0)
    source, row = rng.integers(256, size=(ROWS, row_bytes), dtype=np.uint8), rng.permutation(ROWS)
    target, zeros = np.zeros(ROWS * row_bytes, np.uint8), np.zeros(ROWS, np.int64)
    bases = np.array([[source.ctypes.data]], np.uint64)
    rows = PositionedRows(zeros, zeros, row)
    assert threads.gather_arrays(target, np.array([[row_bytes, 0]]), bases, np.zeros(1, np.int64), rows) == -1
    return bool((target.reshape(ROWS, row_bytes) == source[row]).all())


def running() -> int:
    return sum(thread.name.startswith("forebay-gather-") for thread in threading.enumerate())


def none_is_left() -> bool:
    for thread in threading.enumerate():
        if thread.name.startswith("forebay-gather-"):
            thread.join(60)
    return running() == 0


def test_small_batches_start_no_thread_and_large_ones_start_them_once() -> None:
    threads = GatherThreads(3, least_bytes=100 * ROWS)
    assert gathered(threads, 99) and running() == 0
    for _ in range(3):
        assert gathered(threads, 100) and running() == 2
    threads.close()
    threads.close()
    assert none_is_left()
    assert gathered(threads, 100), "a pipeline that makes a last batch"
    threads.close()
    assert none_is_left()


def test_without_room_for_threads_the_caller_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise LimitReached(f"{thread.name} could not be started")

    monkeypatch.setattr(gather_threads, "begin", refuse)
    assert gathered(GatherThreads(4, least_bytes=0), 8)


@pytest.mark.parametrize(("cores", "number"), [(0.5, 1), (1, 1), (2, 1), (3.9, 1), (4, 2), (8, 4), (16, 8), (96, 8)])
def test_half_of_the_cores_gather(monkeypatch: pytest.MonkeyPatch, cores: float, number: int) -> None:
    monkeypatch.delenv("FOREBAY_GATHER_THREADS", raising=False)
    monkeypatch.setattr(gather_threads, "usable_cores", lambda: cores)
    assert GatherThreads.of_machine()._number == number


@pytest.mark.parametrize(
    ("world_size", "said", "gpus", "number"),
    [
        (1, None, 8, 8),
        (8, None, 8, 3),
        (64, None, 8, 3),
        (2, None, 0, 8),
        (6, None, 0, 4),
        (64, "2", 8, 8),
        (1, "8", 0, 3),
    ],
)
def test_ranks_of_a_node_divide_its_threads(
    monkeypatch: pytest.MonkeyPatch, world_size: int, said: str | None, gpus: int, number: int
) -> None:
    for name, value in (("FOREBAY_GATHER_THREADS", None), ("LOCAL_WORLD_SIZE", said)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gather_threads, "usable_cores", lambda: 48)
    monkeypatch.setattr(gather_threads, "num_gpus", lambda: gpus)
    assert GatherThreads.of_machine(world_size)._number == number


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_a_wrong_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FOREBAY_GATHER_THREADS", value)
    with pytest.raises(InvalidOption, match="FOREBAY_GATHER_THREADS='.*' is not a number of threads"):
        GatherThreads.of_machine()
