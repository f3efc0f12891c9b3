"""Deadline of an examination, which all of its phases obey."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """Time that is left, by one clock.

    Args:
        seconds: Time of all phases together.
        clock: Seconds that only grow.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self._clock = seconds, clock
        self._ends = clock() + seconds

    def now(self) -> float:
        """Time by the clock."""
        return self._clock()

    @property
    def left_s(self) -> float:
        """Seconds left. 0 at the end."""
        return max(0.0, self._ends - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s <= 0.0

    def end(self) -> None:
        """Leave nothing from now on."""
        self._ends = self._clock()
