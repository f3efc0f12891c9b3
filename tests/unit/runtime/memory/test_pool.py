"""Laws of memory pools.

Memory is used again, never twice at a time, and goes back to the system.
"""

from __future__ import annotations

import mmap
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forebay.runtime.memory import pool as memory
from forebay.runtime.memory.pool import BufferPool, MemoryPool, array_pool, empty_array

MIB = 1 << 20
PATIENCE_S = 60


class UntrimmedPool(MemoryPool):
    """Pool that keeps idle memory for the whole test.

    Also while a busy machine does not run it.
    """

    def trim(self, unused_since: float) -> None:
        """Free nothing."""


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    made = UntrimmedPool(kept_bytes=16 * MIB)
    yield made
    made.clear()


@pytest.fixture
def trimmed_pool() -> Iterator[MemoryPool]:
    made = MemoryPool(kept_bytes=16 * MIB)
    yield made
    made.clear()


def address(array: np.ndarray[Any, np.dtype[Any]]) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("num_bytes", [1, MIB, 3 * MIB + 1])
def test_leased_memory_is_writable_aligned_and_as_large_as_requested(pool: MemoryPool, num_bytes: int) -> None:
    leased = pool.lease(num_bytes)
    leased[:] = 7
    assert (leased.dtype, leased.shape) == (np.uint8, (num_bytes,))
    assert leased.flags.c_contiguous and leased.flags.writeable and address(leased) % 64 == 0


def test_memory_is_used_again_for_arrays_of_about_the_same_size(pool: MemoryPool) -> None:
    first = address(pool.lease(3 * MIB))
    assert address(pool.lease(3 * MIB - 100_000)) == first
    assert address(pool.lease(3 * MIB)) == first
    assert address(pool.lease(MIB)) != first, "a small array does not take the memory of a large one"


def test_memory_is_in_use_until_the_last_view_is_freed(pool: MemoryPool) -> None:
    leased = pool.lease(MIB)
    first, view = address(leased), leased[10:20].view(np.int8).reshape(2, 5)
    view[:] = 5
    del leased
    pool.lease(MIB)[:] = 9
    assert (view == 5).all()
    del view
    both = [pool.lease(MIB), pool.lease(MIB)]
    assert first in map(address, both)


def test_idle_memory_has_a_bound(pool: MemoryPool) -> None:
    leased = [pool.lease(3 * MIB) for _ in range(8)]
    assert pool.idle_bytes == 0
    leased.clear()
    assert pool.idle_bytes == 15 * MIB


def test_memory_larger_than_the_bound_goes_back_to_the_system(pool: MemoryPool) -> None:
    pool.lease(17 * MIB)
    assert pool.idle_bytes == 0


def test_a_cleared_pool_keeps_nothing(pool: MemoryPool) -> None:
    leased = pool.lease(MIB)
    pool.lease(MIB)
    pool.clear()
    assert pool.idle_bytes == 0
    del leased
    assert pool.idle_bytes == 0


def test_what_was_not_used_for_a_while_is_freed_and_the_rest_is_kept(pool: MemoryPool) -> None:
    both = [pool.lease(MIB), pool.lease(MIB)]
    both.pop()
    limit = time.monotonic()
    while time.monotonic() == limit:
        pass
    kept = address(both[0])
    both.pop()
    MemoryPool.trim(pool, limit)
    assert pool.idle_bytes == MIB and address(pool.lease(MIB)) == kept
    MemoryPool.trim(pool, time.monotonic() + 1)
    assert pool.idle_bytes == 0


def test_a_thread_gives_idle_memory_back_to_the_system(
    trimmed_pool: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_UNUSED_S", 0.02)
    for _ in range(2):  # the thread ends, and another one begins
        trimmed_pool.lease(MIB)
        deadline = time.monotonic() + PATIENCE_S
        while trimmed_pool.idle_bytes:
            assert time.monotonic() < deadline, "idle memory stays"
            time.sleep(0.01)


def test_no_two_threads_have_the_same_memory_at_a_time(pool: MemoryPool) -> None:
    """Arrays are freed by a thread that did not make them."""
    failed: list[int] = []

    def work(number: int, other: list[Any], own: list[Any]) -> None:
        for turn in range(300):
            leased = pool.lease(70_000 + turn % 3 * 9_000)
            leased[:] = number
            other.append(leased)
            if own and not (taken := own.pop()).min() == taken.max() == 1 - number:
                failed.append(turn)

    lists: tuple[list[Any], list[Any]] = ([], [])
    threads = [threading.Thread(target=work, args=(n, lists[n], lists[1 - n])) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_forked_child_and_its_parent_write_into_memory_of_their_own(trimmed_pool: MemoryPool) -> None:
    read = trimmed_pool.lease(MIB)
    read[:] = 1
    trimmed_pool.lease(MIB)[:] = 2  # Idle when the child begins.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(trimmed_pool, [read], theirs))
    child.start()
    assert ours.poll(PATIENCE_S) and ours.recv() == [0, 3 * MIB, 0]
    assert (read == 1).all()
    leased = trimmed_pool.lease(MIB)
    leased[:] = 9
    ours.send("go on")
    assert ours.poll(PATIENCE_S) and ours.recv() == [7]
    child.join(PATIENCE_S)
    assert (leased == 9).all()


def _child(pool: MemoryPool, read: list[Any], parent: Any) -> None:
    memory._UNUSED_S = 0.02
    idle = [pool.idle_bytes]
    read[0][:] = 6
    read.clear()
    memories = [pool.lease(MIB) for _ in range(3)]
    for each in memories:
        each[:] = 7
    kept = memories[0]
    idle.append(sum(each.nbytes for each in memories))
    del each
    memories.clear()
    deadline = time.monotonic() + PATIENCE_S
    while pool.idle_bytes and time.monotonic() < deadline:  # The child has a thread of its own.
        time.sleep(0.01)
    parent.send([*idle, pool.idle_bytes])
    parent.recv()
    parent.send(np.unique(kept).tolist())


@pytest.mark.parametrize(("shape", "dtype"), [((0, 3), "float32"), ((5,), "int64"), ((300, 70), "float64")])
def test_empty_arrays_are_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    ours, numpys = empty_array(shape, dtype), np.empty(shape, dtype)
    assert (ours.shape, ours.dtype, ours.strides) == (numpys.shape, numpys.dtype, numpys.strides)
    assert ours.flags.c_contiguous and ours.flags.aligned and ours.flags.writeable


def test_small_arrays_take_no_memory_of_the_pool() -> None:
    before = array_pool.idle_bytes
    empty_array((100,), "float32")
    assert array_pool.idle_bytes <= before


def test_an_array_that_fits_nowhere_is_an_error_of_memory() -> None:
    with pytest.raises(MemoryError, match="needs 4611686018427387904 bytes"):
        empty_array((1 << 59,), "float64")


def test_arrays_may_outlive_the_interpreter() -> None:
    code = """
import sys
from forebay.runtime.memory.pool import empty_array
sys.kept = [empty_array((1 << 20,), "int64") for _ in range(3)]
sys.kept.pop()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")


PINNED_BYTES = 1000


class SharedPool(BufferPool):
    """Pool whose memory a forked child shares with its parent.

    As it does page-locked memory.
    """

    def __init__(self) -> None:
        super().__init__(kept_bytes=1 << 20, pinned=True)

    def _fresh(self, num_bytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8) if self._pinned else super()._fresh(num_bytes)


def test_a_forked_child_leaves_page_locked_memory_to_its_parent() -> None:
    pool = SharedPool()
    read = [pool.lease(PINNED_BYTES)]
    read[0][:] = 1
    pool.lease(PINNED_BYTES)[:] = 2  # Idle when the child begins.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_use_shared, args=(pool, read, theirs))
    child.start()
    assert ours.poll(60) and ours.recv() == "written"
    assert (read[0] == 1).all(), "the child reused what the parent still reads"
    leased = pool.lease(PINNED_BYTES)
    leased[:] = 9
    ours.send("go on")
    assert ours.poll(60) and ours.recv() == [7, 8]
    child.join(60)
    assert (leased == 9).all()


def _use_shared(pool: SharedPool, read: list[Any], parent: Any) -> None:
    first = pool.lease(PINNED_BYTES)
    first[:] = 7
    read.clear()  # The child is the last here to drop memory of the parent.
    second = pool.lease(PINNED_BYTES)
    second[:] = 8
    parent.send("written")
    assert parent.poll(60) and parent.recv() == "go on"
    parent.send(sorted({*first.tolist(), *second.tolist()}))


def test_memory_is_reused_in_a_forked_child_too() -> None:
    pool = SharedPool()
    pool.leave_memory()
    address = pool.lease(PINNED_BYTES).ctypes.data
    assert pool.lease(PINNED_BYTES).ctypes.data == address


def test_page_locked_memory_outlives_long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_UNUSED_S", 0.02)
    locked, plain = SharedPool(), BufferPool(kept_bytes=1 << 20)
    locked.lease(PINNED_BYTES)
    plain.lease(PINNED_BYTES)
    while plain.idle_bytes:  # its thread trims all pools that it may
        time.sleep(0.01)
    assert locked.idle_bytes
