"""Rounds of the federation over simulated clusters."""

from __future__ import annotations

import dataclasses

import pytest
from tests.fleet_simulation.clusters import SimulatedFleet
from tests.fleet_simulation.made import made_fleet, simulated
from tests.fleet_simulation.storage import SimulatedStorage

import forebay as fb
from forebay.fleet.federation.acceptance import GpuShares, Oversight, job_folder
from forebay.fleet.federation.federation import Federation
from forebay.fleet.federation.run_storage import target_of
from forebay.fleet.kube.api_errors import KubeError, NamespaceEnds, ObjectInvalid, QuotaExceeded
from forebay.fleet.kube.kuberay import NameTaken
from forebay.fleet.lifecycle.decide import Phase, SeenClaim
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.lifecycle.states import JobState
from forebay.fleet.placement.hold import HOLD_AFTER_S
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.submitter import Submitter


class FleetBench:
    """One controller, its clusters and its clock."""

    def __init__(self, clusters: int = 1, nodes: int = 8) -> None:
        self.fleet = fleet = made_fleet(clusters)
        self.clusters: SimulatedFleet = simulated(fleet, nodes)
        self.storage, self.journal, self.now = SimulatedStorage(), JobJournal(":memory:"), 0.0
        self.federation = Federation(fleet, self.clusters, self.storage, self.journal)
        self.work: dict[str, float] = {}

    def submit(self, name: str, workers: int, hours: float, *tasks: fb.fleet.Task) -> None:
        shape = fb.fleet.TaskWorkers(min=workers, cpu="32", memory="256Gi", gpus=8)
        spec = fb.JobSpec(name=name, storage="memory://r", task=tasks or (fb.fleet.Task(run="a.py", workers=shape),))
        for task in spec.task:
            self.work[spec.run_name(task)] = hours * 3600 * task.workers.min
        self.federation.submit(spec, self.now)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 30
            self.clusters.now = self.now
            for cluster in self.clusters.clusters.values():
                cluster.advance(self.storage, self.work.__getitem__, self.now, 30)
            self.federation.step(self.now)

    def lose_journal(self) -> None:
        """Start another controller, which knows the submissions alone."""
        submitted = [(entry.spec, entry.submitted_at) for entry in self.journal.entries()]
        self.journal = JobJournal(":memory:")
        self.federation = Federation(self.fleet, self.clusters, self.storage, self.journal)
        for spec, at in submitted:
            self.federation.submit(spec, at)

    def state(self, name: str) -> str:
        entry = self.journal.entry(name)
        assert entry is not None
        state: JobState = entry.state
        return type(state).__name__


def test_tasks_run_in_their_order() -> None:
    bench = FleetBench()
    shape = fb.fleet.TaskWorkers(gpus=8)
    first, second = (
        fb.fleet.Task(name="a", run="a.py", workers=shape),
        fb.fleet.Task(name="b", run="b.py", workers=shape, after=("a",)),
    )
    bench.submit("job", 1, 0.5, second, first)
    bench.run(900)
    assert (bench.state("job.a"), bench.state("job.b")) == ("AttemptRunning", "JobQueued")
    bench.run(3600)
    assert (bench.state("job.a"), bench.state("job.b")) == ("JobSucceeded", "JobSucceeded")


def test_a_task_after_a_failed_one_fails() -> None:
    bench = FleetBench()
    first = fb.fleet.Task(name="a", run="a.py", retries=0, workers=fb.fleet.TaskWorkers(gpus=8))
    bench.submit("job", 1, 0.5, first, fb.fleet.Task(name="b", run="b.py", after=("a",)))
    bench.run(300)
    (cluster,) = bench.clusters.clusters.values()
    (ray_job,) = cluster.jobs.values()
    cluster.end(ray_job, "failed", "exit 1", bench.now)
    bench.run(120)
    assert (bench.state("job.a"), bench.state("job.b")) == ("JobFailed", "JobFailed")
    assert "its task a did not succeed" in bench.journal.reasons("job.b")[-1].why


def test_a_run_that_somebody_else_started_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FleetBench()
    found = bench.storage.newest_claim

    def newest_claim(spec: fb.JobSpec, task: fb.fleet.Task) -> SeenClaim | None:
        return SeenClaim(number=1, target=target_of("")) if spec.name == "theirs" else found(spec, task)

    monkeypatch.setattr(bench.storage, "newest_claim", newest_claim)
    bench.submit("theirs", 1, 0.5)
    bench.submit("ours", 1, 0.5)
    bench.run(900)
    assert (bench.state("theirs"), bench.state("ours")) == ("JobFailed", "AttemptRunning")


def test_a_stopped_job_gives_its_room_back() -> None:
    bench = FleetBench()
    bench.submit("job", 4, 10)
    bench.run(300)
    assert bench.state("job") == "AttemptRunning"
    bench.storage.stopped.add("job")
    bench.run(120)
    assert bench.state("job") == "JobStopped"
    (cluster,) = bench.clusters.clusters.values()
    assert (cluster.jobs, cluster.busy_gpus) == ({}, 0)


def test_a_job_that_waits_has_a_reason_per_cluster() -> None:
    bench = FleetBench(clusters=2)
    for name in ("one", "two", "three"):
        bench.submit(name, 4, 10)
    bench.run(300)
    assert [bench.state(name) for name in ("one", "two", "three")] == ["AttemptRunning", "AttemptRunning", "JobQueued"]
    reasons = bench.federation.reasons("three")
    assert len(reasons) == 2
    assert reasons[0] == "c00: h100 on-demand has room for 0 workers now, and 4 are needed"


@pytest.mark.parametrize("holds", [True, False])
def test_a_large_job_does_not_starve_behind_small_ones(monkeypatch: pytest.MonkeyPatch, holds: bool) -> None:
    monkeypatch.setattr("forebay.fleet.placement.hold.HOLD_AFTER_S", 900.0)
    if not holds:
        monkeypatch.setattr(Federation, "_hold", lambda *_: None)
    bench = FleetBench()
    for number in range(4):
        bench.submit(f"first-{number}", 1, 0.2 + 0.1 * number)
    bench.run(60)
    bench.submit("large", 4, 0.1)
    for number in range(24):
        bench.submit(f"small-{number}", 1, 0.5)
    bench.run(900 + 2 * 3600)
    assert (bench.state("large") == "JobSucceeded") == holds


def test_no_room_is_held_for_a_task_that_waits_for_another_task() -> None:
    """It would stay empty, and the earlier task could not be tried again there."""
    bench = FleetBench()
    shape = fb.fleet.TaskWorkers(cpu="32", memory="256Gi", gpus=8)
    first = fb.fleet.Task(name="a", run="a.py", workers=shape)
    bench.submit("job", 1, 10, first, fb.fleet.Task(name="b", run="b.py", after=("a",), workers=shape))
    bench.run(HOLD_AFTER_S + 600)
    bench.submit("other", 1, 0.5)
    bench.run(600)
    assert bench.state("other") == "AttemptRunning"
    (cluster,) = bench.clusters.clusters.values()
    ray_job = next(job for job in cluster.jobs.values() if job.run == "job.a")
    cluster.end(ray_job, "failed", "exit 1", bench.now)
    bench.run(600)
    assert bench.state("job.a") == "AttemptRunning"


def test_no_room_is_held_for_a_task_above_the_share_of_its_submitter() -> None:
    bench = FleetBench()
    team = Submitter(name="team", storage=("memory://r",), most_gpus=8)
    owners = {job_folder("memory://r", name): team for name in ("one", "two")}
    oversight = Oversight(shares=lambda entries: GpuShares(entries, owners))
    bench.federation = Federation(bench.fleet, bench.clusters, bench.storage, bench.journal, oversight=oversight)
    bench.submit("one", 1, 10)
    bench.submit("two", 1, 10)
    bench.run(HOLD_AFTER_S + 600)
    bench.submit("other", 1, 0.5)
    bench.run(600)
    assert [bench.state(name) for name in ("one", "two", "other")] == ["AttemptRunning", "JobQueued", "AttemptRunning"]


def test_an_attempt_that_failed_has_not_waited_while_it_ran() -> None:
    bench = FleetBench()
    bench.submit("long", 3, 10)
    bench.run(HOLD_AFTER_S + 600)
    (cluster,) = bench.clusters.clusters.values()
    (ray_job,) = cluster.jobs.values()
    cluster.end(ray_job, "failed", "exit 1", bench.now)
    bench.run(60)
    bench.submit("short", 1, 0.1)
    bench.run(300)
    assert bench.federation.reasons("short") == (), "room was held for the next attempt of the other one"


def test_an_attempt_that_is_turned_away_waits_on() -> None:
    bench = FleetBench()
    (cluster,) = bench.clusters.clusters.values()
    empty = cluster.capacity(0.0)
    bench.submit("long", 4, 100)
    bench.run(300)
    bench.submit("waits", 4, 1)
    reasons = set[str]()
    while bench.now < HOLD_AFTER_S + 1500:
        cluster.frozen = dataclasses.replace(empty, observed_at=bench.now)  # figures of an agent that lags
        if bench.now > HOLD_AFTER_S + 300:
            bench.submit(f"small-{bench.now:.0f}", 1, 1)
        bench.run(30)
        reasons |= {each for job in bench.work for each in bench.federation.reasons(job) if job.startswith("small")}
    assert any("held for waits" in each for each in reasons), reasons


def test_a_ray_job_is_deleted_some_time_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fleet_simulation.clusters.TTL_S", 1e9)
    monkeypatch.setattr("forebay.fleet.federation.federation.KEEP_ENDED_S", 600.0)
    bench = FleetBench()
    bench.submit("short", 1, 0.1)
    bench.submit("long", 1, 10)
    bench.run(900)
    (cluster,) = bench.clusters.clusters.values()
    assert bench.state("short") == "JobSucceeded"
    assert sorted(job.phase for job in cluster.jobs.values()) == ["running", "succeeded"]
    bench.run(900)
    assert [job.run for job in cluster.jobs.values()] == ["long"]


def test_a_hundred_jobs_at_once_take_the_room_of_sixty() -> None:
    bench = FleetBench(clusters=3, nodes=40)
    for number in range(100):
        bench.submit(f"job-{number}", 1, 2)
    bench.run(600)
    states = [bench.state(f"job-{number}") for number in range(100)]
    assert (states.count("AttemptRunning"), states.count("JobQueued")) == (60, 40)
    reasons = [reason.state for number in range(100) for reason in bench.journal.reasons(f"job-{number}")]
    assert "AttemptWithdrawing" not in reasons
    assert all(bench.federation.reasons(f"job-{n}") for n, state in enumerate(states) if state == "JobQueued")


def test_a_journal_that_was_lost_is_made_again() -> None:
    bench = FleetBench(clusters=2)
    bench.submit("job", 4, 2)
    bench.run(600)
    before = dict(bench.clusters.clusters["c00"].jobs) | dict(bench.clusters.clusters["c01"].jobs)
    bench.lose_journal()
    bench.run(120)
    after = dict(bench.clusters.clusters["c00"].jobs) | dict(bench.clusters.clusters["c01"].jobs)
    assert bench.state("job") == "AttemptRunning"
    assert list(after) == list(before)
    assert dataclasses.replace(bench.storage.runs["job"], commits=[]).finished_by is None


def test_without_a_journal_running_jobs_are_followed_in_a_full_fleet() -> None:
    bench = FleetBench()
    for name in ("one", "two"):
        bench.submit(name, 4, 2)
    bench.run(300)
    bench.lose_journal()
    bench.run(120)
    assert [bench.state(name) for name in ("one", "two")] == ["AttemptRunning", "JobQueued"]


@pytest.mark.parametrize(("phase", "after"), [("failed", 2), ("succeeded", 1)])
def test_without_a_journal_an_ended_attempt_is_not_started_again(phase: Phase, after: int) -> None:
    """The RayJob was deleted without a record."""
    bench = FleetBench()
    bench.submit("job", 4, 2)
    bench.run(300)
    (cluster,) = bench.clusters.clusters.values()
    ((name, ray_job),) = cluster.jobs.items()
    cluster.end(ray_job, phase, "exit 1", bench.now)
    bench.federation.step(bench.now)
    cluster.jobs.pop(name, None)
    bench.lose_journal()
    bench.run(300)
    assert name not in cluster.jobs
    assert len(bench.storage.runs["job"].claims) == after
    assert bench.state("job") == ("AttemptRunning" if after == 2 else "JobSucceeded")


def test_without_a_journal_failures_of_all_attempts_count() -> None:
    bench = FleetBench()
    bench.submit("job", 4, 2)
    (cluster,) = bench.clusters.clusters.values()
    for number in range(1, 5):
        bench.run(600)
        claims = bench.storage.runs["job"].claims
        assert len(claims) == number
        bench.lose_journal()
        bench.federation.step(bench.now)
        cluster.end(
            next(each for each in cluster.jobs.values() if each.phase == "running"), "failed", "exit 1", bench.now
        )
        bench.federation.step(bench.now)
    bench.run(60)
    assert bench.state("job") == "JobFailed"
    assert bench.journal.reasons("job")[-1].why == "exit 1 (attempt 4, 4 failures, 3 retries allowed)"


@pytest.mark.parametrize(
    "error",
    [
        QuotaExceeded("exceeded quota"),
        NamespaceEnds("is being terminated"),
        ObjectInvalid("unknown field"),
        NameTaken("a RayJob of this name is there"),
    ],
)
def test_a_cluster_that_refuses_the_ray_job_is_left_at_once(monkeypatch: pytest.MonkeyPatch, error: KubeError) -> None:
    bench = FleetBench(clusters=2)
    create = bench.clusters.create
    refusing: list[str] = []

    def refuse_first(cluster: str, attempt: PlacedAttempt) -> None:
        if not refusing or cluster in refusing:
            refusing.append(cluster)
            raise error
        create(cluster, attempt)

    monkeypatch.setattr(bench.clusters, "create", refuse_first)
    bench.submit("job", 1, 1)
    bench.run(240)
    assert bench.state("job") == "AttemptRunning"
    assert len(refusing) == 1
    assert f"it cannot start in {refusing[0]}: {error}" in [each.why for each in bench.journal.reasons("job")]


def test_controllers_whose_clocks_differ_by_an_hour_run_each_job_once() -> None:
    bench, ahead = FleetBench(clusters=2), JobJournal(":memory:")
    other = Federation(made_fleet(2), bench.clusters, bench.storage, ahead)
    for name in ("one", "two", "three"):
        bench.submit(name, 2, 0.5)
        (entry,) = (each for each in bench.journal.entries() if each.name == name)
        other.submit(entry.spec, bench.now + 3600)
    for _ in range(40):
        bench.run(60)
        other.step(bench.now + 3600)
    assert {name: len(run.claims) for name, run in bench.storage.runs.items()} == {"one": 1, "two": 1, "three": 1}
    assert {bench.state(name) for name in ("one", "two", "three")} == {"JobSucceeded"}
