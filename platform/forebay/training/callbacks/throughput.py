"""Current speed of a run, from its last reports."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from forebay.events import Reported

WINDOW_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    at: float
    step: int
    rows: int
    wait_s: float


class Throughput:
    """Rates over about the last ten seconds. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def read(self, event: Reported, at: float) -> None:
        """Add a report that arrived at the time `at`."""
        readings = self._readings
        if readings and event.step <= readings[-1].step:
            readings.clear()  # Readings of an earlier attempt, which ended with lost workers.
        readings.append(_Reading(at=at, step=event.step, rows=event.rows, wait_s=event.wait_s))
        while len(readings) > 2 and at - readings[0].at > WINDOW_S:
            readings.popleft()

    @property
    def _seconds(self) -> float:
        return self._readings[-1].at - self._readings[0].at if self._readings else 0.0

    @property
    def rows_per_s(self) -> float | None:
        """Global rows per second, or None before there are two reports."""
        if self._seconds <= 0:
            return None
        return (self._readings[-1].rows - self._readings[0].rows) / self._seconds

    @property
    def wait_share(self) -> float | None:
        """Share of the time that rank 0 waited for data, 0 to 1."""
        if self._seconds <= 0:
            return None
        share = (self._readings[-1].wait_s - self._readings[0].wait_s) / self._seconds
        return min(max(share, 0.0), 1.0)

    def left_s(self, steps: int) -> float | None:
        """Seconds that `steps` more steps take at this pace."""
        if self._seconds <= 0 or self._readings[-1].step == self._readings[0].step:
            return None
        return steps * self._seconds / (self._readings[-1].step - self._readings[0].step)
