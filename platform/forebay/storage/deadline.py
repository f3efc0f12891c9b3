"""Deadline for calls that may hang without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from forebay.errors import Cancelled
from forebay.runtime.at_exit import wait_for_read
from forebay.runtime.foreign_code import OutcomeThread, begin

T = TypeVar("T")


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
    wait_for_read(thread)
    with stop.followed_by(ended):
        begin(thread)
        ended.wait(deadline_s)
    if thread.outcome is not None:
        return thread.outcome.result()
    if stop.is_set():
        raise Cancelled("the read was cancelled")
    raise TimeoutError(f"no answer within {deadline_s:g} s")
