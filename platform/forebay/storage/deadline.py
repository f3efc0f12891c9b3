"""Deadline for calls that may hang without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from forebay.at_exit import wait_for_read
from forebay.errors import Cancelled
from forebay.foreign_code import CallOutcome, outcome_of

T = TypeVar("T")

_POLL_S = 0.02


class _Call(Generic[T]):
    """One call in its own thread. `done` is set once its outcome is there."""

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self.done = threading.Event()
        self._outcome: CallOutcome[T] | None = None

    def run(self) -> None:
        self._outcome = outcome_of(self._fn)
        self.done.set()

    def result(self) -> T:
        assert self._outcome is not None
        return self._outcome.result()


def call_with_deadline(fn: Callable[[], T], deadline_s: float, cancelled: threading.Event | None = None) -> T:
    """Run `fn` in a new daemon thread and return its result, or raise its exception.

    A native read cannot be interrupted. So after the deadline its thread is abandoned, and ends when the read returns.
    It delays the end of the process by at most 1.5 s (a ThreadPoolExecutor waits without limit).

    Raises:
        TimeoutError: No answer within `deadline_s` seconds.
        Cancelled: `cancelled` was set before the answer came.
    """
    call = _Call(fn)
    if cancelled is not None and cancelled.is_set():
        raise Cancelled("the read was cancelled before it began")
    thread = threading.Thread(target=call.run, name="forebay-read", daemon=True)
    wait_for_read(thread)
    thread.start()
    end = time.monotonic() + deadline_s
    while not call.done.wait(_wait_s(end, cancelled)):
        if cancelled is not None and cancelled.is_set():
            raise Cancelled("the read was cancelled")
        if time.monotonic() >= end:
            raise TimeoutError(f"no answer within {deadline_s:g} s")
    return call.result()


def _wait_s(end: float, cancelled: threading.Event | None) -> float:
    left = max(end - time.monotonic(), 0.0)
    return left if cancelled is None else min(left, _POLL_S)
