"""Allocation of a sweep's slots to its trials. Pure.

A slot has room for one worker.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Policy = Literal["top", "uniform", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemand:
    """Bounds and forecast of a trial that needs workers.

    A higher forecast is better.
    """

    trial_id: str
    min_workers: int = 1
    max_workers: int
    forecast: float = 0.0


def allocate(demands: Sequence[WorkerDemand], slots: int, policy: Policy = "uniform") -> dict[str, int]:
    """Return the number of workers per trial.

    At most `slots` in total, each within its bounds or 0.

    Each trial gets its minimum, in the given order, while slots last. The first trial that cannot get it, and all after
    it, get 0. The rest is distributed one by one. `top` fills the trial with the best forecast, then the next.
    `uniform` gives to the trial with the fewest workers. `softmax` gives to the trial with the fewest workers for its
    weight, which grows exponentially with its forecast. One more slot never takes a worker from another trial, if all
    minima fit.
    """
    target_workers, left = dict.fromkeys((demand.trial_id for demand in demands), 0), slots
    served: list[WorkerDemand] = []
    for demand in demands:
        if demand.min_workers > left:
            break
        target_workers[demand.trial_id] = demand.min_workers
        left -= demand.min_workers
        served.append(demand)
    weights = _weights(served, policy)
    for _ in range(left):
        open_demands = [demand for demand in served if target_workers[demand.trial_id] < demand.max_workers]
        if not open_demands:
            break
        if policy == "top":
            chosen = max(open_demands, key=lambda demand: demand.forecast)
        else:
            # The trial furthest below its share, one at a time (D'Hondt). Largest remainders could take an slot
            # away from a trial when another slot is added.
            chosen = max(
                open_demands, key=lambda demand: weights[demand.trial_id] / (target_workers[demand.trial_id] + 1)
            )
        target_workers[chosen.trial_id] += 1
    return target_workers


def _weights(demands: Sequence[WorkerDemand], policy: Policy) -> dict[str, float]:
    """Return the softmax of the forecasts.

    In units of their spread, so that the scale of the metric does not matter.
    """
    if policy != "softmax":
        return {demand.trial_id: 1.0 for demand in demands}
    known = [demand.forecast for demand in demands if math.isfinite(demand.forecast)]
    best = max(known, default=0.0)
    spread = statistics.pstdev(known) if len(known) > 1 else 0.0
    return {demand.trial_id: _weight(demand.forecast, best, spread or 1.0) for demand in demands}


def _weight(forecast: float, best: float, spread: float) -> float:
    return math.exp(max((forecast - best) / spread, -50.0)) if math.isfinite(forecast) else math.exp(-50.0)
