"""GPU hours and cost of a run, start by start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.events import Started
from forebay.training.runs.timeline.timeline import RunStart, Timeline

GPUS = "job.gpus"
"""Fact of a start: GPUs of a worker."""
MACHINE = "placed.machine"
"""Fact of a start that a fleet placed: cluster, SKU and market."""
PRICE = "placed.price_per_hour"
"""Fact of a start that a fleet placed: price of a worker for an hour, where it is known."""
PRICE_ON_DEMAND = "placed.on_demand_price_per_hour"
"""Fact of a start on spot machines that may fall back: price of a worker on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Cost so far.

    `gpu_hours` is None where a start does not say how many GPUs a worker has, and `amount` where the price of a start
    is unknown.
    """

    gpu_hours: float | None
    amount: float | None


UNKNOWN = RunCost(gpu_hours=None, amount=None)


def cost_of(timeline: Timeline) -> RunCost:
    """Return the cost of all starts of a run.

    Each counts its workers, from its begin to where it was recorded last, by their price on the machine that it had.
    Heads, and machines before the process of a run begins, are not part of it. A run without starts has no known cost,
    nor has one of which starts are left out.
    """
    if timeline.omitted or timeline.damaged or not timeline.starts:
        return UNKNOWN
    gpu_hours = _sum(_product(worker_hours(each), each.origin.config.get(GPUS)) for each in timeline.starts)
    amount = _sum(map(_amount, timeline.starts))
    return RunCost(gpu_hours=gpu_hours, amount=amount)


def total_cost(costs: Iterable[RunCost]) -> RunCost:
    """Sum of the costs of several runs."""
    found = list(costs)
    return RunCost(gpu_hours=_sum(each.gpu_hours for each in found), amount=_sum(each.amount for each in found))


def worker_hours(start: RunStart) -> float:
    """Hours of all workers of a start.

    Before the first workers train, and while lost ones are replaced, their machines are there, too.
    """
    least = start.origin.config.get("job.min_workers")
    return _hours(start, "world_size", least if isinstance(least, int) else 0)


def _hours(start: RunStart, count: str, without: int = 0) -> float:
    """Hours of what its worlds count. `without` is the count of a start without a world."""
    sizes = [(each.at_s, each.facts.get(count) or 0) for each in start.events if each.kind == Started.__name__]
    at_s, size = 0.0, sizes[0][1] if sizes else without
    seconds = 0.0
    for next_s, next_size in sizes:
        seconds += size * (next_s - at_s)
        at_s, size = next_s, next_size
    return float(seconds + size * max(start.last_s - at_s, 0.0)) / 3600


def _amount(start: RunStart) -> float | None:
    """Return the cost of a start. Workers that fell back from spot cost what a machine on demand does."""
    price, on_demand = start.origin.config.get(PRICE), start.origin.config.get(PRICE_ON_DEMAND)
    dear = 0.0 if on_demand is None else _hours(start, "on_demand")
    return _sum([_product(worker_hours(start) - dear, price), *([_product(dear, on_demand)] if dear else [])])


def _product(hours: float, factor: object) -> float | None:
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    return hours * float(factor) if is_number else None  # type: ignore[arg-type]


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if a value is unknown, or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
