"""Thread pool with single flight.

Tasks run in order, and simultaneous requests for a task share one run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from forebay.errors import Cancelled, LimitReached, LoaderClosed
from forebay.runtime.foreign_code import begin, outcome_of

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlightPool(Generic[K, T]):
    """Pool of at most `num_threads` daemon threads.

    They run `work(task)`. A thread starts when a task needs it.

    Each thread calls `on_start` first, which must not fail. `peek` runs in the thread that submits, and must not block.

    Not a ThreadPoolExecutor: it joins its threads at exit, so one stuck read would keep the process from ending.
    """

    def __init__(
        self,
        work: Callable[[K], T],
        *,
        num_threads: int,
        on_start: Callable[[], None] = lambda: None,
        peek: Callable[[K], T | None] = lambda _: None,
    ) -> None:
        self._work = work
        self._peek = peek
        self._on_start = on_start
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._queue: deque[K] = deque()
        self._waiting: dict[K, list[Future[T]]] = {}
        self._threads: list[threading.Thread] = []
        self._num_idle = self._num_running = 0
        self._closed = False

    def submit(self, task: K) -> Future[T]:
        """Return the result of `work(task)`.

        Joins its queued or current run, if there is one.

        A value of `peek(task)` is the result at once, without a thread.
        """
        future: Future[T] = Future()
        if not self._closed and (value := self._peek(task)) is not None:
            future.set_result(value)
            return future
        with self._changed:
            if self._closed:
                raise LoaderClosed("a block was requested from a closed source. Open another one.")
            if task in self._waiting:
                self._waiting[task].append(future)
                return future
            if self._num_idle <= len(self._queue) and len(self._threads) < self._num_threads:
                self._start_thread()
            self._waiting[task] = [future]
            self._queue.append(task)
            self._changed.notify()
        return future

    @property
    def has_queue(self) -> bool:
        """Whether a task waits for a thread."""
        return bool(self._queue)

    def resize(self, num_threads: int) -> None:
        """Run up to `num_threads` tasks at once from now on.

        Running ones stay.
        """
        with self._changed:
            self._num_threads = num_threads
            wanted = len(self._queue) - self._num_idle
            for _ in range(min(wanted, num_threads - len(self._threads))):
                self._start_thread()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Cancel unfinished tasks and stop the threads.

        Waits for them at most `timeout_s`. A stuck thread is abandoned.
        """
        with self._changed:
            self._closed = True
            pending = [future for futures in self._waiting.values() for future in futures]
            self._waiting.clear()
            self._queue.clear()
            self._changed.notify_all()
        _cancel(pending)
        give_up = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, give_up - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="forebay-data", daemon=True)
        try:
            begin(thread)
        except LimitReached:  # the running threads may suffice
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _run(self) -> None:
        self._on_start()
        while True:
            with self._changed:
                self._num_idle += 1
                while not self._closed and (not self._queue or self._num_running >= self._num_threads):
                    self._changed.wait()
                self._num_idle -= 1
                if self._closed:
                    return
                task = self._queue.popleft()
                if all(future.cancelled() for future in self._waiting[task]):
                    del self._waiting[task]
                    continue
                self._num_running += 1
            self._run_one(task)
            with self._changed:
                self._num_running -= 1

    def _run_one(self, task: K) -> None:
        # A separate function, so that an idle thread keeps no block alive.
        outcome = outcome_of(partial(self._work, task))
        if isinstance(outcome.error, Cancelled):
            with self._changed:
                futures = self._waiting.pop(task, [])
            _cancel(futures)
            return
        for future in self._pop_waiting(task):
            outcome.settle(future)

    def _pop_waiting(self, task: K) -> list[Future[T]]:
        """Remove and return the futures that wait for `task`.

        A later request starts a new run.
        """
        with self._changed:
            futures = self._waiting.pop(task, [])
        return [future for future in futures if future.set_running_or_notify_cancel()]


def _cancel(futures: Iterable[Future[T]]) -> None:
    for future in futures:
        if future.cancel():
            future.set_running_or_notify_cancel()
