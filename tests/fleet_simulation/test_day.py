"""Shortened days of a small fleet, each with faults."""

from __future__ import annotations

import pytest
from tests.fleet_simulation.day import DayReport, FaultRates, SimulatedDay
from tests.fleet_simulation.made import made_fleet, made_jobs, simulated
from tests.fleet_simulation.storage import SimulatedStorage

HOUR = 3600.0
ALL = FaultRates(
    cut=0.3, storage_cut=0.3, refused=0.2, throttled=0.3, lost_answers=0.3, stale=0.3, node_loss=0.2, spot_storm=0.2
)
TROUBLES: dict[str, tuple[FaultRates, int, float, bool]] = {
    "nothing": (FaultRates(), 1, 0.0, True),
    "partitions": (FaultRates(cut=1.0), 1, 0.0, True),
    "storage-cut": (FaultRates(storage_cut=1.0, cut=0.5), 1, 0.0, True),
    "lost-answers": (FaultRates(lost_answers=2.0), 1, 0.0, True),
    "401-429": (FaultRates(refused=1.0, throttled=1.0), 1, 0.0, True),
    "stale": (FaultRates(stale=2.0), 1, 0.0, True),
    "spot-storms": (FaultRates(spot_storm=1.0, node_loss=0.5), 1, 0.0, True),
    "crashes": (ALL, 1, 0.2, True),
    "crashes-without-journal": (ALL, 1, 0.2, False),
    "two-controllers": (ALL, 2, 0.1, True),
    "two-controllers-without-journals": (ALL, 2, 0.1, False),
}


def day(seed: int, trouble: str, *, jobs: int = 12, hours: float = 2.0, silent_audit: float = 0.0) -> DayReport:
    faults, controllers, crashes, keeps_journal = TROUBLES[trouble]
    fleet = made_fleet(3, seed)
    made = made_jobs(jobs, hours * HOUR / 2, largest=4, seed=seed, mean_s=1200.0)
    simulation = SimulatedDay(fleet, simulated(fleet, 8), made, seed=seed, faults=faults)
    simulation.num_controllers, simulation.crash_chance, simulation.keeps_journal = controllers, crashes, keeps_journal
    simulation.audit_chance = silent_audit
    report = simulation.run(hours * HOUR)
    assert simulation.clusters.changes
    assert all(line.run or line.action == "deleted" for line in simulation.lines)
    return report


@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_job_is_lost_and_none_trains_twice(trouble: str) -> None:
    report = day(0, trouble)
    assert (report.ended, report.succeeded) == (12, 12)
    if "crashes" in trouble:
        assert report.controllers_ended > 3


@pytest.mark.parametrize("trouble", ["nothing", "crashes-without-journal", "two-controllers"])
def test_without_a_line_nothing_changes_in_a_cluster(trouble: str) -> None:
    """The audit takes one line of three: all jobs end, later, and the law holds at every step."""
    report = day(1, trouble, silent_audit=0.67)
    assert (report.ended, report.succeeded) == (12, 12)


def test_a_change_without_a_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDay, "_note", lambda *_: None)
    with pytest.raises(AssertionError, match="a change without a line"):
        day(0, "nothing")


@pytest.mark.variation("more seeds of the test above")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_thousand_days(trouble: str) -> None:
    for seed in range(1, 92):
        report = day(seed, trouble)
        assert report.succeeded == 12, f"seed {seed}"


def test_a_day_without_trouble_restarts_nothing() -> None:
    report = day(3, "nothing", jobs=30, hours=4)
    assert (report.restarts, report.withdrawals) == (0, 0)


def test_without_the_fence_work_is_kept_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws can fail.

    Here every attempt may save, also a fenced one.
    """

    def commit(storage: SimulatedStorage, name: str, number: int, begin: float, end: float) -> bool:
        assert storage.runs[name].progress == begin, "work is kept twice, or is missing"
        storage.runs[name].commits.append((number, end))
        return True

    monkeypatch.setattr(SimulatedStorage, "commit", commit)
    seen = set()
    for seed in range(6):
        try:
            day(seed, "partitions")
        except AssertionError as error:
            seen.add(str(error).partition("\n")[0])
    assert "work is kept twice, or is missing" in seen
