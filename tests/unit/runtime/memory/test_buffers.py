from __future__ import annotations

import mmap
import multiprocessing
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forebay.runtime.memory import pool as memory
from forebay.runtime.memory.buffers import BufferPool

SIZE = 1000


class SharedPool(BufferPool):
    """Pool whose memory a forked child shares with its parent.

    As it does page-locked memory.
    """

    def __init__(self) -> None:
        super().__init__(kept_bytes=1 << 20, pinned=True)

    def _fresh(self, num_bytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8) if self._pinned else super()._fresh(num_bytes)


def test_a_forked_child_and_its_parent_write_into_memory_of_their_own() -> None:
    pool = SharedPool()
    read = [pool.lease(SIZE)]
    read[0][:] = 1
    pool.lease(SIZE)[:] = 2  # Idle when the child begins.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(pool, read, theirs))
    child.start()
    assert ours.poll(60) and ours.recv() == "written"
    assert (read[0] == 1).all(), "the child reused what the parent still reads"
    leased = pool.lease(SIZE)
    leased[:] = 9
    ours.send("go on")
    assert ours.poll(60) and ours.recv() == [7, 8]
    child.join(60)
    assert (leased == 9).all()


def _child(pool: SharedPool, read: list[Any], parent: Any) -> None:
    first = pool.lease(SIZE)
    first[:] = 7
    read.clear()  # The child is the last here to drop memory of the parent.
    second = pool.lease(SIZE)
    second[:] = 8
    parent.send("written")
    assert parent.poll(60) and parent.recv() == "go on"
    parent.send(sorted({*first.tolist(), *second.tolist()}))


def test_memory_is_reused_in_a_forked_child_too() -> None:
    pool = SharedPool()
    pool.leave_memory()
    address = pool.lease(SIZE).ctypes.data
    assert pool.lease(SIZE).ctypes.data == address


def test_page_locked_memory_outlives_long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_UNUSED_S", 0.02)
    locked, plain = SharedPool(), BufferPool(kept_bytes=1 << 20)
    locked.lease(SIZE)
    plain.lease(SIZE)
    while plain.idle_bytes:  # its thread trims all pools that it may
        time.sleep(0.01)
    assert locked.idle_bytes
