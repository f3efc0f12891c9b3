"""Time of threads on a core, queued, or blocked.

Blocked by a lock, a sleep or a device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.runtime.foreign_code import OutcomeThread

_SCHEDULED = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTime:
    """Seconds of a thread.

    `wall_s` in all, `cpu_s` on a core, `blocked_s` neither on a core nor waiting for one.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    blocked_s: float = 0.0

    def __add__(self, other: ThreadTime) -> ThreadTime:
        return ThreadTime(
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            blocked_s=self.blocked_s + other.blocked_s,
        )

    @property
    def blocked_share(self) -> float:
        """Share of the time in which the thread was blocked.

        Without the time that it waited for a core.

        A thread that waits for the GIL wakes up every 5 ms, so on a busy machine it mostly waits for a core.
        """
        return self.blocked_s / (self.blocked_s + self.cpu_s) if self.blocked_s else 0.0


class ThreadClock:
    """Clock of the calling thread, from its making on.

    Linux counts the time that a thread waited for a core. This separates a thread that a busy machine slows down from
    one that waits for a lock. `is_exact` is False on systems without that count.
    """

    is_exact = _SCHEDULED.exists()

    def __init__(self) -> None:
        self._start = _now()

    def elapsed(self) -> ThreadTime:
        """Return the time since the clock was made.

        Called in the same thread.
        """
        wall_s, cpu_s, queued_s = (now - then for now, then in zip(_now(), self._start, strict=True))
        return ThreadTime(wall_s=wall_s, cpu_s=cpu_s, blocked_s=max(wall_s - cpu_s - queued_s, 0.0))


class ThreadLoop:
    """Threads that repeat `work` from `start` to `stop`."""

    def __init__(self, work: Callable[[], object], num_threads: int) -> None:
        self._work, self._ends = work, threading.Event()
        self._threads = [OutcomeThread(self._run, "forebay-doctor") for _ in range(num_threads)]

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> ThreadTime:
        """End the threads after their present work.

        Returns their time. Raises the error of one that failed.

        CPU time counts until the first thread ends. The others are not blocked after that: with work of the length of
        a round, a lock would seem to block two threads for a third of their time instead of a half.
        """
        self._ends.set()
        for thread in self._threads:
            thread.join()
        times = [thread.outcome.result() for thread in self._threads if thread.outcome is not None]
        first_s = min(each.wall_s for each in times)
        shared = (replace(each, cpu_s=max(each.cpu_s - (each.wall_s - first_s), 0.0)) for each in times)
        return sum(shared, ThreadTime())

    def run_for(self, seconds: float) -> ThreadTime:
        """Start, wait and stop.

        Every thread works at least once.
        """
        self.start()
        self._ends.wait(seconds)
        return self.stop()

    def _run(self) -> ThreadTime:
        clock = ThreadClock()
        self._work()
        while not self._ends.is_set():
            self._work()
        return clock.elapsed()


def _now() -> tuple[float, float, float]:
    if not ThreadClock.is_exact:
        return time.perf_counter(), time.thread_time(), 0.0
    cpu_ns, queued_ns, _ = map(int, _SCHEDULED.read_text().split())
    return time.perf_counter(), cpu_ns / 1e9, queued_ns / 1e9
