"""Time of threads on a core, queued, or blocked.

Blocked by a lock, a sleep or a device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.runtime.foreign_code import OutcomeThread, begin

_SCHEDULED = Path("/proc/thread-self/schedstat")
_LEAST_S = 1.0
"""Time of a thread that says something from outside: Linux counts its present wait for a core only afterwards."""


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

    def elapsed(self, thread: int | None = None) -> ThreadTime:
        """Return the time since the clock was made.

        Called in the same thread, or with the native number of its `thread`.
        """
        wall_s, cpu_s, queued_s = (now - then for now, then in zip(_now(thread), self._start, strict=True))
        return ThreadTime(wall_s=wall_s, cpu_s=cpu_s, blocked_s=max(wall_s - cpu_s - queued_s, 0.0))


class ThreadLoop:
    """Threads that repeat `work` from `start` to `stop`."""

    def __init__(self, work: Callable[[], object], num_threads: int) -> None:
        self._work, self._ends = work, threading.Event()
        self._threads = [OutcomeThread(self._run, "forebay-doctor") for _ in range(num_threads)]
        self._clocks = dict[int, ThreadClock]()

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            begin(thread)

    def stop(self, within_s: float | None = None) -> ThreadTime:
        """End the threads after their present work.

        Returns their time. Raises the error of one that failed.

        A thread whose work has not ended `within_s` is left behind, and its time until now counts.

        CPU time counts until the first thread ends. The others are not blocked after that: with work of the length of
        a round, a lock would seem to block two threads for a third of their time instead of a half.
        """
        self._ends.set()
        give_up = None if within_s is None else time.perf_counter() + within_s
        for thread in self._threads:
            thread.join(None if give_up is None else max(0.0, give_up - time.perf_counter()))
        if any(thread.is_alive() for thread in self._threads):
            return sum(map(self._time_so_far, self._threads), ThreadTime())
        times = [thread.outcome.result() for thread in self._threads if thread.outcome is not None]
        first_s = min(each.wall_s for each in times)
        shared = (replace(each, cpu_s=max(each.cpu_s - (each.wall_s - first_s), 0.0)) for each in times)
        return sum(shared, ThreadTime())

    def run_for(self, seconds: float, *, within_s: float | None = None) -> ThreadTime:
        """Start, wait and stop.

        Every thread works at least once, unless that takes longer than `within_s` in all.
        """
        self.start()
        self._ends.wait(seconds)
        return self.stop(None if within_s is None else max(0.0, within_s - seconds))

    def _time_so_far(self, thread: OutcomeThread[ThreadTime]) -> ThreadTime:
        if thread.outcome is not None:
            return thread.outcome.result()
        clock = self._clocks.get(thread.native_id or 0)
        time_so_far = ThreadTime() if clock is None else clock.elapsed(thread.native_id)
        return time_so_far if time_so_far.wall_s >= _LEAST_S else ThreadTime()

    def _run(self) -> ThreadTime:
        clock = self._clocks[threading.get_native_id()] = ThreadClock()
        self._work()
        while not self._ends.is_set():
            self._work()
        return clock.elapsed()


def _now(thread: int | None = None) -> tuple[float, float, float]:
    if not ThreadClock.is_exact:
        return time.perf_counter(), time.thread_time(), 0.0
    scheduled = _SCHEDULED if thread is None else Path(f"/proc/self/task/{thread}/schedstat")
    cpu_ns, queued_ns, _ = map(int, scheduled.read_text().split())
    return time.perf_counter(), cpu_ns / 1e9, queued_ns / 1e9
