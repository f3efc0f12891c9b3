from __future__ import annotations

import pytest
from studies.fleet_study import PLACERS, FleetLoad, simulate_day

LOAD = FleetLoad(clusters=2, nodes=4, jobs=6, largest=2, mean_s=900.0)


@pytest.mark.parametrize("rule", PLACERS)
def test_every_rule_ends_all_jobs_of_a_day(rule: str) -> None:
    numbers = simulate_day(LOAD, PLACERS[rule], seed=0)
    assert numbers["jobs ended"] == LOAD.jobs
    again = simulate_day(LOAD, PLACERS[rule], seed=0)
    measured = {"CPU seconds": 0.0, "peak memory, MiB": 0.0}
    assert numbers | measured == again | measured, "a day of one seed has one outcome"
