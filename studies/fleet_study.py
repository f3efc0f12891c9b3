"""Placement in a fleet: packed gangs against first-fit and against trying clusters by price. On a fake clock.

    python -m studies.fleet_study day --clusters 10 --nodes 100 --jobs 1300 --largest 50 --seeds 5 > day.json
    python -m studies.fleet_study report day.json

`day` simulates days under each rule, on the same jobs and faults. `report` draws `docs/experiments/fleet.png`.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tests.fleet_simulation.day import FaultRates, SimulatedDay
from tests.fleet_simulation.made import made_fleet, made_jobs, simulated

from forebay.fleet.cluster import Cluster, Market
from forebay.fleet.federation.federation import Placer
from forebay.fleet.placement.capacity import PoolRemainder
from forebay.fleet.placement.history import COOL_DOWN_S, PlacementHistory, Pool
from forebay.fleet.placement.place import Fit, FleetView, Placement, PlacementChoice, Refusal, gang_of, place
from forebay.fleet.spec.job_spec import JobSpec, Task

DAY_S = 86_400.0
OUTAGES = 3
MARKETS: dict[str, tuple[Market, ...]] = {
    "never": ("on-demand",),
    "prefer": ("spot", "on-demand"),
    "only": ("spot",),
}


def first_fit(spec: JobSpec, task: Task, view: FleetView, _: PlacementHistory, now: float) -> Placement:
    """First cluster of the list whose free GPUs suffice for the smallest gang."""
    for choice in _options(spec, task, view):
        capacity = view.capacities[choice.cluster]
        # Pools that are held, and clusters that turned an attempt away, are rules of ours.
        free = sum(each.count * each.free.gpus for each in capacity.nodes if choice.gang.pool in each.pools)
        if capacity.fault is None and now - capacity.observed_at <= 90 and free >= task.workers.min * task.workers.gpus:
            return Placement(choices=(choice,), refusals=())
    return Placement(choices=(), refusals=(Refusal(cluster="all", reason="too few free GPUs"),))


def by_price(spec: JobSpec, task: Task, view: FleetView, history: PlacementHistory, now: float) -> Placement:
    """Cheapest cluster on which no attempt of the job ended lately, whatever has room there: SkyPilot's order."""
    for choice in sorted(_options(spec, task, view), key=lambda each: each.price_per_hour or 0.0):
        left = _left_at(history, (choice.cluster, choice.sku, choice.market))
        if left is None or now - left > COOL_DOWN_S * len(view.clusters):
            return Placement(choices=(choice,), refusals=())
    return Placement(choices=(), refusals=(Refusal(cluster="all", reason="every cluster turned it away"),))


def _left_at(history: PlacementHistory, pool: Pool) -> float | None:
    """Time at which a pool turned an attempt of the job away, or had one that failed."""
    ends = (*history.failed.get(pool, ()), history.turned_away.get(pool))
    return max((each for each in ends if each is not None), default=None)


def _options(spec: JobSpec, task: Task, view: FleetView) -> Iterator[PlacementChoice]:
    for market in MARKETS[task.workers.spot]:
        for cluster in view.clusters:
            if cluster.is_allowed(spec.scheduling.clusters, spec.scheduling.deny) is None:
                yield _option(spec, task, cluster, market)


def _option(spec: JobSpec, task: Task, cluster: Cluster, market: Market) -> PlacementChoice:
    gang = gang_of(spec, task, cluster, "h100", market)
    return PlacementChoice(
        cluster=cluster.name,
        sku="h100",
        market=market,
        fit=Fit.SMALLEST_NOW,
        workers=task.workers.min,
        gang=gang,
        price_per_hour=cluster.sku["h100"].price(market),
        reason="",
        remainder=PoolRemainder(0, 0, 0),
    )


PLACERS: dict[str, Placer] = {"Forebay": place, "first-fit": first_fit, "by price": by_price}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """Size of a fleet and of its jobs."""

    clusters: int
    nodes: int
    jobs: int
    largest: int
    mean_s: float


def simulate(load: FleetLoad, seeds: int, rules: Sequence[str]) -> dict[str, dict[str, float]]:
    """Numbers of a day under each rule, in the mean over seeds. The longest start is over all seeds."""
    found: dict[str, dict[str, float]] = {}
    for name in rules:
        days = [simulate_day(load, PLACERS[name], seed) for seed in range(seeds)]
        found[name] = {number: fmean(day[number] for day in days) for number in days[0]}
        found[name]["longest start, s"] = max(day["longest start, s"] for day in days)
    return found


def simulate_day(load: FleetLoad, placer: Placer, seed: int) -> dict[str, float]:
    """Numbers of one day."""
    clusters = load.clusters
    faults = FaultRates(
        cut=OUTAGES / (24 * clusters), node_loss=0.02 / 24, spot_storm=1 / (24 * clusters), stale=1 / (24 * clusters)
    )
    fleet = made_fleet(clusters, seed)
    trace = made_jobs(load.jobs, DAY_S, load.largest, seed, mean_s=load.mean_s)
    day = SimulatedDay(fleet, simulated(fleet, load.nodes), trace, seed=seed, faults=faults, placer=placer)
    began = time.process_time()
    report = day.run(DAY_S, drain_s=20 * DAY_S)
    return {
        "mean start, s": report.mean_start_s,
        "p99 start, s": report.p99_start_s,
        "longest start, s": max(report.started_after_s),
        "idle share of GPUs": report.idle_share,
        "restarts": report.restarts,
        "withdrawals": report.withdrawals,
        "jobs ended": report.succeeded,
        "requests per cluster and hour": report.cluster_requests / (clusters * 24),
        "requests to storage per hour": report.storage_requests / 24,
        "CPU seconds": time.process_time() - began,
        "peak memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    """Bars of the numbers that differ, one panel each."""
    from matplotlib import pyplot  # noqa: PLC0415 - takes a second, and `day` does not need it

    shown = ("mean start, s", "p99 start, s", "idle share of GPUs", "restarts")
    figure, axes = pyplot.subplots(1, len(shown), figsize=(12, 3.2))
    for axis, number in zip(axes, shown, strict=True):
        bars = axis.bar(list(found), [each[number] for each in found.values()], color=("#2a6f97", "#a9a9a9", "#d9a441"))
        axis.bar_label(bars, fmt="%.3g", fontsize=8)
        axis.set_title(number, fontsize=10)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    day = verbs.add_parser("day")
    for name, value in (("clusters", 50), ("nodes", 1000), ("jobs", 10_000), ("largest", 500), ("mean-s", 5400)):
        day.add_argument(f"--{name}", type=int, default=value)
    day.add_argument("--seeds", type=int, default=1)
    day.add_argument("--rule", choices=tuple(PLACERS), action="append")
    verbs.add_parser("report").add_argument("file", type=Path)
    given = parser.parse_args()
    if given.verb == "day":
        load = FleetLoad(
            clusters=given.clusters, nodes=given.nodes, jobs=given.jobs, largest=given.largest, mean_s=given.mean_s
        )
        print(json.dumps(simulate(load, given.seeds, given.rule or tuple(PLACERS)), indent=2))
    else:
        draw(json.loads(given.file.read_text()), Path("docs/experiments/fleet.png"))


if __name__ == "__main__":
    main()
