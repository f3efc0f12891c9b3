"""Fleets and traces of jobs for simulated days."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from tests.fleet_simulation.clusters import SimulatedFleet
from tests.fleet_simulation.day import SimulatedJob

from forebay.fleet.cluster import Cluster, Market, Sku
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.placement.capacity import HEAD_POOL, NodeGroup, Shape
from forebay.fleet.placement.place import machine_of
from forebay.fleet.spec.job_spec import JobSpec, Scheduling, Task, TaskWorkers

GPUS = 8


def made_fleet(num_clusters: int, seed: int = 0) -> Fleet:
    """Return a fleet of machines with 8 GPUs.

    They are on both markets, at prices that differ by a half.
    """
    rng = random.Random(seed)
    return Fleet(cluster=tuple(_cluster(f"c{number:02d}", rng.uniform(0.75, 1.25)) for number in range(num_clusters)))


def simulated(fleet: Fleet, nodes: int) -> SimulatedFleet:
    """Return clusters of `nodes` machines each.

    Half of them are spot, and there is room for heads.
    """

    def groups(cluster: Cluster) -> Iterator[NodeGroup]:
        for name, sku in cluster.sku.items():
            halves: tuple[tuple[Market, int], ...] = (("spot", nodes // 2), ("on-demand", nodes - nodes // 2))
            for market, count in halves:
                yield NodeGroup(machine_of(sku), (f"{name}/{market}",), count)
        yield NodeGroup(Shape(64_000, 256 << 30), (HEAD_POOL,), max(2, nodes // 10))

    return SimulatedFleet(fleet, groups)


def made_jobs(count: int, seconds: float, largest: int, seed: int = 0, *, mean_s: float = 3600.0) -> list[SimulatedJob]:
    """Yield jobs at random times, of random sizes.

    They take 1 GPU to `largest` machines, for `mean_s` in the mean. Sizes are log-uniform.
    """
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        part = rng.random() < 0.2
        machines = max(1, round(math.exp(rng.uniform(0, math.log(largest)))))
        gpus, workers = (rng.choice((1, 2, 4)), rng.randint(1, 4)) if part else (GPUS, machines)
        spec = JobSpec(
            name=f"job-{number}",
            storage="memory://runs",
            task=(
                Task(
                    run="train.py",
                    retries=1000,
                    workers=TaskWorkers(
                        min=workers,
                        cpu=str(4 * gpus),
                        memory=f"{32 * gpus}Gi",
                        gpus=gpus,
                        spot=rng.choice(("never", "prefer", "prefer", "only")),
                    ),
                ),
            ),
            scheduling=Scheduling(deny=("c00",) if number % 10 == 0 else (), start_within=600.0),
        )
        work = workers * rng.expovariate(1 / mean_s)
        jobs.append(SimulatedJob(spec=spec, submitted_at=rng.uniform(0, seconds), work=max(60.0, work)))
    return jobs


def _cluster(name: str, factor: float) -> Cluster:
    sku = Sku(
        cpu="64",
        memory="512Gi",
        gpus=GPUS,
        price_per_hour=round(20 * factor, 2),
        spot_price_per_hour=round(6 * factor, 2),
        markets=("spot", "on-demand"),
    )
    return Cluster(name=name, context=name, sku={"h100": sku}, image="registry.example/forebay@sha256:00")
