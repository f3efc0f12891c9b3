"""Cost of a job: hours of its attempts times their price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUse:
    """Time that an attempt had its workers. `price_per_hour` is that of all of them, None if it is unknown."""

    number: int
    seconds: float
    workers: int
    gpus: int
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """Cost so far. `amount` is None if the price of an attempt is unknown."""

    gpu_hours: float
    amount: float | None


def job_cost(uses: Iterable[AttemptUse]) -> JobCost:
    """Cost of a job's attempts.

    >>> job_cost([AttemptUse(number=1, seconds=1800, workers=2, gpus=8, price_per_hour=12.0)])
    JobCost(gpu_hours=4.0, amount=6.0)
    """
    gpu_hours, amount, is_known = 0.0, 0.0, True
    for each in uses:
        hours = each.seconds / 3600
        gpu_hours += hours * each.gpus
        is_known = is_known and each.price_per_hour is not None
        amount += hours * (each.price_per_hour or 0.0)
    return JobCost(gpu_hours=gpu_hours, amount=amount if is_known else None)
