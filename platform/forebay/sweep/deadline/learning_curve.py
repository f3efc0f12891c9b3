"""Forecast of a trial's gains. Pure.

The median gain of other trials at the same age.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

KEPT = 15
SMOOTH = 3


class LearningCurve:
    """Median gain of one more epoch, by age.

    Over the trials that have reached that age.
    """

    def __init__(self) -> None:
        self._by_age: list[list[float]] = []
        self._sums: list[float] = [0.0]
        self._valid = 0

    def note(self, age: int, gain: float) -> None:
        """Add a trial's gain from `age` to `age` + 1 epochs.

        `age` is at least 1.
        """
        if not math.isfinite(gain):
            return
        while len(self._by_age) < age:
            self._by_age.append([])
        kept = self._by_age[age - 1]
        kept.append(gain)
        del kept[:-KEPT]
        self._valid = min(self._valid, age - 1)

    def gain_between(self, age: int, later: float) -> float:
        """Gain of a trial from `age` to `later` epochs.

        Beyond the oldest trial, gains fade with the square of the age, as in a power law.
        """
        self._sum_up()
        known = len(self._by_age) + 1
        if later <= age:
            return 0.0
        inside = self._sums[min(int(later), known) - 1] - self._sums[min(age, known) - 1]
        if later <= known or known < 2:
            return inside
        window = min(len(self._by_age), 3)
        last = max((self._sums[-1] - self._sums[-1 - window]) / window, 0.0)
        start = max(age, known)
        return inside + last * known * known * (1.0 / start - 1.0 / later)

    def _sum_up(self) -> None:
        if self._valid == len(self._by_age) and len(self._sums) == len(self._by_age) + 1:
            return
        del self._sums[self._valid + 1 :]
        for kept in self._by_age[self._valid :]:
            self._sums.append(self._sums[-1] + (statistics.median(kept) if kept else 0.0))
        self._valid = len(self._by_age)


def current_level(scores: Sequence[float]) -> float:
    """Return the current level of a noisy curve.

    The median of its last few scores, fewer for a young, steep curve.
    """
    if not scores:
        return -math.inf
    count = min(SMOOTH, 1 + len(scores) // 4)
    return float(statistics.median(scores[-count:]))
