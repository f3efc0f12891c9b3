"""Waits for native calls before the interpreter ends.

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
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.errors import Cancelled

_READS_S = 1.5
"""Most abandoned reads return soon, or never."""


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


def wait_for_read(thread: threading.Thread) -> None:
    """Make the end of the process wait for a read.

    At most 1.5 s: the thread that reads from storage may never return.
    """
    _running.add_read(thread)


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
