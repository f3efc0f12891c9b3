"""Speedup of training by number of workers. Pure.

Learned from the results of trials.
"""

from __future__ import annotations

import math

PRIOR_EXPONENT = 0.8
PRIOR_WEIGHT = 0.5
TRUST = 2.0


class SpeedupModel:
    """Speedup relative to one worker, pooled over trials.

    Fitted to rows per second.

    One exponent is fitted to all trials that were seen with several numbers of workers. It is pulled towards
    `PRIOR_EXPONENT` while data are few. Numbers of workers that were seen get a correction from their measurements.
    Trials differ in speed, so each is compared only with itself.
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, tuple[int, float]]] = {}
        self._exponent = PRIOR_EXPONENT
        self._corrections: dict[int, float] = {}

    def note(self, trial_id: str, workers: int, rows_per_s: float) -> None:
        """Add the rate of an epoch with `workers` workers."""
        if workers < 1 or not rows_per_s > 0 or not math.isfinite(rows_per_s):
            return
        of_trial = self._seen.setdefault(trial_id, {})
        count, mean = of_trial.get(workers, (0, 0.0))
        of_trial[workers] = (count + 1, mean + (math.log(rows_per_s) - mean) / (count + 1))
        if len(of_trial) > 1:
            self._fit()

    def speedup(self, workers: int) -> float:
        """Speed relative to one worker."""
        return float(workers**self._exponent * math.exp(self._corrections.get(workers, 0.0))) if workers > 0 else 0.0

    def _fit(self) -> None:
        pairs = [_centred(of_trial) for of_trial in self._seen.values() if len(of_trial) > 1]
        points = [point for pair in pairs for point in pair]
        across = sum(x * y for _, x, y in points)
        along = sum(x * x for _, x, _ in points)
        fitted = (across + PRIOR_WEIGHT * PRIOR_EXPONENT) / (along + PRIOR_WEIGHT)
        self._exponent = min(max(fitted, 0.0), 1.0)
        off: dict[int, list[float]] = {}
        for workers, x, y in points:
            off.setdefault(workers, []).append(y - self._exponent * x)
        self._corrections = {n: sum(found) / (len(found) + TRUST) for n, found in off.items()}


def _centred(of_trial: dict[int, tuple[int, float]]) -> list[tuple[int, float, float]]:
    """Return (workers, log workers, log rate).

    The logarithms are relative to the trial's own means.
    """
    x_mean = sum(math.log(n) for n in of_trial) / len(of_trial)
    y_mean = sum(mean for _, mean in of_trial.values()) / len(of_trial)
    return [(n, math.log(n) - x_mean, mean - y_mean) for n, (_, mean) in of_trial.items()]
