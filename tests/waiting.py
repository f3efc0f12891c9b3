"""Wait for other threads and processes, and a clock that waits for a test."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_S = 120.0


def until(condition: Callable[[], object], within_s: float = MOST_S) -> None:
    """Return once `condition()` is true. Fails after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.005)


class SetClock:
    """Clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
