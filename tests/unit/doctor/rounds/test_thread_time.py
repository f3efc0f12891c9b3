"""Threads that wait for a lock, for a core, or for nothing."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest

from forebay.doctor.rounds.thread_time import ThreadClock, ThreadLoop

needs_count = pytest.mark.skipif(not ThreadClock.is_exact, reason="the system does not count waiting for cores")
DATA = bytes(1 << 20)


def busy() -> None:
    hashlib.sha256(DATA).digest()  # without the GIL


@needs_count
def test_threads_under_a_lock_are_blocked_and_others_are_not() -> None:
    lock = threading.Lock()

    def under_lock() -> None:
        with lock:
            for _ in range(8):
                busy()

    free, locked = (ThreadLoop(work, 3).run_for(0.2) for work in (busy, under_lock))
    # Also if other processes hold all cores: that does not block.
    assert locked.blocked_share > 0.4 > free.blocked_share


@needs_count
def test_work_as_long_as_a_round_is_blocked_for_half_of_it() -> None:
    lock, turns = threading.Lock(), list[int]()

    def once() -> None:
        with lock:
            turns.append(threading.get_ident())
            for _ in range(60):
                busy()

    # Each thread works once: the second one waits for the first, and then works alone.
    assert ThreadLoop(once, 2).run_for(0.0).blocked_share > 0.4
    assert len(set(turns)) == 2


@needs_count
def test_a_sleep_is_blocking() -> None:
    assert ThreadLoop(lambda: time.sleep(0.01), 1).run_for(0.05).blocked_share > 0.5


@needs_count
def test_work_that_does_not_end_is_measured_from_outside_and_left_behind() -> None:
    lock, ends = threading.Lock(), threading.Event()

    def under_lock() -> None:
        with lock:
            while not ends.is_set():
                busy()

    try:
        found = ThreadLoop(under_lock, 2).run_for(0.1, within_s=1.2)
    finally:
        ends.set()
    assert found.cpu_s > 0 and found.blocked_share > 0.3


def test_the_error_of_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        ThreadLoop(lambda: 1 // 0, 2).run_for(0.01)
