"""Room held for jobs that waited long.

Otherwise smaller jobs would pass them forever. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from forebay.fleet.placement.history import PlacementHistory
from forebay.fleet.placement.place import FleetView, most_when_empty, usable_pools
from forebay.fleet.spec.job_spec import JobSpec, Task

HOLD_AFTER_S = 5400.0
"""Wait after which a job gets all room that becomes free in one pool. The room stays empty until it is enough."""
HELD_SHARE = 10
"""At most one in so many pools of the fleet is held, and at least one."""

Holds: TypeAlias = Mapping[tuple[str, str], str]
"""Cluster and pool -> the run that it is held for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """A task that waits for capacity, and for nothing else."""

    name: str
    spec: JobSpec
    task: Task
    since: float


def choose_holds(waiting: Sequence[WaitingTask], view: FleetView, before: Holds, now: float) -> Holds:
    """Choose the pools to hold.

    Holds of `before` stay while their task waits and their cluster answers. Each task that waited for `HOLD_AFTER_S`
    gets the pool where the most workers fit now, of those that could hold it when they are empty. `waiting` is in the
    order of submission.
    """
    names = {each.name for each in waiting}
    held: dict[tuple[str, str], str] = {
        pool: name for pool, name in before.items() if name in names and view.capacities[pool[0]].fault is None
    }
    most = max(1, sum(len(sku.markets) for each in view.clusters for sku in each.sku.values()) // HELD_SHARE)
    for each in waiting:
        if len(held) >= most:
            break
        if now - each.since < HOLD_AFTER_S or each.name in held.values():
            continue
        open_pools = ((room, pool) for room, pool in _rooms(each, view, now) if pool not in held)
        best = max(open_pools, default=None)
        if best is not None:
            held[best[1]] = each.name
    return held


def _rooms(waiting: WaitingTask, view: FleetView, now: float) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield pools that could hold a task.

    Each comes with the number of workers that fit there now.
    """
    for each in usable_pools(waiting.spec, waiting.task, view, PlacementHistory(), now):
        capacity = view.capacities[each.cluster.name]
        if most_when_empty(each, capacity) >= each.gang.workers:
            yield capacity.most(each.gang), (each.cluster.name, each.gang.pool)
