"""Interval of a share that was counted in a sample."""

from __future__ import annotations

import math

_Z = 1.959963984540054
"""Two-sided 95 %."""


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927).

    Half successes, such as ties, are allowed.

    >>> tuple(round(bound, 4) for bound in wilson_interval(8, 10))
    (0.4902, 0.9433)
    """
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, _Z**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)
