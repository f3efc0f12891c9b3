"""Simulated days of a fleet: API servers, storage, nodes and controllers fail, and no job is lost or trains twice."""

from __future__ import annotations

import random
from pathlib import Path

from tests.fleet_simulation.day import FaultRates, SimulatedDay
from tests.fleet_simulation.made import made_fleet, made_jobs, simulated
from tests.soak.case import CaseOutcome, fault

HOUR = 3600.0


@fault("fleet-day", expected="equal: each job ends once, and none trains twice", share=1.0, quick=0)
def fleet_day(rng: random.Random, folder: Path) -> CaseOutcome:
    def rate() -> float:
        return rng.choice([0.0, 0.2, 1.0, 3.0])

    fleet, hours, count = made_fleet(rng.randint(2, 5), rng.randrange(1 << 30)), rng.choice([1.0, 3.0]), 12
    jobs = made_jobs(count, hours * HOUR / 2, largest=4, seed=rng.randrange(1 << 30), mean_s=1200.0)
    rates = FaultRates(
        cut=rate(),
        storage_cut=rate(),
        refused=rate(),
        throttled=rate(),
        lost_answers=rate(),
        stale=rate(),
        node_loss=rate() / 2,
        spot_storm=rate() / 2,
        longest_s=rng.choice([300.0, 2400.0]),
    )
    day = SimulatedDay(fleet, simulated(fleet, 8), jobs, seed=rng.randrange(1 << 30), faults=rates)
    day.num_controllers, day.keeps_journal = rng.randint(1, 3), rng.random() < 0.5
    day.crash_chance, day.audit_chance = rng.choice([0.0, 0.1, 0.3]), rng.choice([0.0, 0.0, 0.3])
    report = day.run(hours * HOUR)
    assert (report.ended, report.succeeded) == (count, count), "a job did not succeed"
    return CaseOutcome("equal", faults={f"simulated fleet: {kind}": number for kind, number in report.faults.items()})
