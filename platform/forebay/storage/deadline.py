"""Native calls: their deadlines, and the end of the process.

They outlive their caller.

Before Python 3.14, a thread that returns from C++ into an interpreter that has ended is unwound by `pthread_exit`. If
C++ has called Python on the way, that ends the process with SIGABRT, whatever its exit code should be. Arrow does so to
read from a Python file and to release its buffers. See https://github.com/python/cpython/issues/87135, fixed in 3.14.
`os._exit` does not help: a function of `atexit` cannot learn the exit code.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from forebay.errors import Cancelled
from forebay.runtime.foreign_code import OutcomeThread, begin

T = TypeVar("T")

_READS_S = 1.5
"""Most abandoned reads return soon, or never."""


class Cancellation(threading.Event):
    """An event whose `set` sets other events too.

    So a thread can wait for it and for something else without polling.

    Looks every 20 ms by 128 waiting reads cost 7200 context switches a second, and 0.13 of a core.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._followers: set[threading.Event] = set()

    def set(self) -> None:
        """Set this event and all that follow it."""
        super().set()
        with self._guard:
            for event in self._followers:
                event.set()

    @contextmanager
    def followed_by(self, event: threading.Event) -> Iterator[None]:
        """Set `event` as soon as this one is set.

        At once if it is set already. Ends with the block.
        """
        with self._guard:
            self._followers.add(event)
        try:
            if self.is_set():
                event.set()
            yield
        finally:
            with self._guard:
                self._followers.discard(event)


class _Running:
    """Native calls that are running.

    None begins once the process is ending.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start with none.

        A forked child takes part in none of its parent's calls.
        """
        self._changed = threading.Condition()
        self._count = 0
        self._is_ending = False
        self._reads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def add_read(self, thread: threading.Thread) -> None:
        """Make the end of the process wait for a read, which storage may never answer."""
        self._reads.add(thread)

    def enter(self) -> None:
        with self._changed:
            self._raise_if_ending()
            self._count += 1

    def leave(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()
            self._raise_if_ending()

    def wait(self) -> None:
        """Wait until no call is running.

        At most `_READS_S` seconds for reads.
        """
        with self._changed:
            self._is_ending = True
            self._changed.wait_for(lambda: not self._count)
        give_up = time.monotonic() + _READS_S
        for thread in list(self._reads):
            if thread.is_alive():
                thread.join(max(give_up - time.monotonic(), 0.0))

    def _raise_if_ending(self) -> None:
        if self._is_ending:
            raise Cancelled("the process ends")


_running = _Running()


def call_with_deadline(fn: Callable[[], T], deadline_s: float, cancelled: Cancellation | None = None) -> T:
    """Run `fn` in a daemon thread with a deadline.

    Returns its result, or raises its exception.

    A native read cannot be interrupted. So after the deadline its thread is abandoned, and ends when the read returns.
    It delays the end of the process by at most 1.5 s (a ThreadPoolExecutor waits without limit).

    Raises:
        TimeoutError: No answer within `deadline_s` seconds.
        Cancelled: `cancelled` was set before the answer came.
        LimitReached: The thread could not be started.
    """
    stop = cancelled or Cancellation()
    if stop.is_set():
        raise Cancelled("the read was cancelled before it began")
    ended = threading.Event()
    thread = OutcomeThread(fn, "forebay-read", ended.set)
    _running.add_read(thread)
    with stop.followed_by(ended):
        begin(thread)
        ended.wait(deadline_s)
    if thread.outcome is not None:
        return thread.outcome.result()
    if stop.is_set():
        raise Cancelled("the read was cancelled")
    raise TimeoutError(f"no answer within {deadline_s:g} s")


@contextmanager
def finished_before_exit() -> Iterator[None]:
    """Make the end of the process wait for the block.

    Without limit: for native work that always ends.

    Raises `Cancelled` in a process that is ending.
    """
    _running.enter()
    try:
        yield
    finally:
        _running.leave()


def _wait_at_exit() -> None:
    try:
        _running.wait()
    except KeyboardInterrupt:  # a second Ctrl-C: end now, as a program without a handler does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


# The first registered function is called last: loaders and pools have been closed by then.
atexit.register(_wait_at_exit)
os.register_at_fork(after_in_child=_running.reset)
