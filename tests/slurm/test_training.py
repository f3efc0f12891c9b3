"""Training on a real SLURM cluster: requeued, asked to end, a node lost, cancelled.

An undisturbed run has the same rows and the same result. Prints what each case costs (`pytest -s`).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.slurm.cluster import until
from tests.slurm.conftest import ENDS_S, Jobs

from forebay.fleet.client.submit import submit
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.result import Result

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

STEP_S = 0.3


@pytest.fixture(scope="module")
def calm_results() -> dict[str, Result]:
    return {}


@pytest.fixture
def calm(jobs: Jobs, calm_results: dict[str, Result]) -> Result:
    """Result of an undisturbed job on two nodes."""
    if "calm" not in calm_results:
        calm_results["calm"] = jobs.result(jobs.submit("calm"))
    return calm_results["calm"]


def as_calm(jobs: Jobs, name: str, result: Result, calm: Result) -> dict[tuple[int, int], int]:
    """Check rows and result. Returns how often each step was trained on, beyond once."""
    assert [epoch.rows for epoch in result.epochs] == [epoch.rows for epoch in calm.epochs] == [27_000]
    assert [epoch.metrics for epoch in result.epochs] == [epoch.metrics for epoch in calm.epochs]
    counts: dict[tuple[int, int], int] = {}
    for rank in (0, 1):
        planned = {each.step: each.digest for each in jobs.steps("calm", rank)}
        trained = jobs.steps(name, rank)
        assert {each.step: each.digest for each in trained} == planned
        assert all(planned[each.step] == each.digest for each in trained)
        if rank == 0:
            counts = {step: sum(each.step == step for each in trained) - 1 for step in planned}
    return {step: count for step, count in counts.items() if count}


def attempt(jobs: Jobs, name: str) -> int:
    claim = AttemptFiles(f"{jobs.storage}/{name}").newest()
    return 0 if claim is None else claim.number


def test_job_trains_on_two_nodes_and_submitted_twice_trains_once(jobs: Jobs) -> None:
    path = jobs.write("twice")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: submit(path, "slurm"), range(2))
    result = jobs.result(first)
    assert jobs.result(second) == result
    assert attempt(jobs, "twice") == 1
    trained = [each.step for each in jobs.steps("twice")]
    assert len(trained) == len(set(trained))
    assert {each.host for rank in (0, 1) for each in jobs.steps("twice", rank)} == {"n1", "n2"}
    assert submit(path, "slurm").status().state == "succeeded"


def test_asked_to_end_before_the_limit_it_saves_and_continues(jobs: Jobs, calm: Result) -> None:
    job = jobs.submit("limit", step_s=STEP_S)
    jobs.wait_steps("limit", 5)
    number = jobs.job_of("limit")
    # The signal of `--signal=B:TERM@90` comes at once: the limit is less than 90 s away.
    began = time.time()
    elapsed = jobs.cluster.call("squeue", "--noheader", f"--jobs={number}", "--Format=TimeUsed:20").strip()
    minutes = sum(int(part) * 60**power for power, part in enumerate(reversed(elapsed.split(":")))) // 60
    jobs.cluster.call("scontrol", "update", f"JobId={number}", f"TimeLimit={minutes + 2}")
    until(lambda: jobs.cluster.state(number) == "PENDING", "the requeued job", ENDS_S)
    jobs.cluster.call("scontrol", "update", f"JobId={number}", "TimeLimit=60")
    again = jobs.wait_steps("limit", 1, restarts=1)
    first = [each for each in jobs.steps("limit") if each.restarts == 0]
    result = jobs.result(job)
    lost = as_calm(jobs, "limit", result, calm)
    print(f"\nlimit: {len(lost)} steps lost, {again[0].time - first[-1].time:.1f} s without a step,"
          f" the last step {first[-1].time - began:.1f} s after the order")  # fmt: skip
    assert not lost
    assert attempt(jobs, "limit") == 2


@pytest.mark.parametrize("nodes", [1, 2])
def test_requeued_by_an_operator_it_saves_and_continues(jobs: Jobs, calm: Result, nodes: int) -> None:
    name = f"requeue-{nodes}"
    job = jobs.submit(name, step_s=STEP_S, nodes=nodes)
    jobs.wait_steps(name, 5)
    began = time.time()
    jobs.cluster.call("scontrol", "requeue", jobs.job_of(name))
    again = jobs.wait_steps(name, 1, restarts=1)
    result = jobs.result(job)
    lost = as_calm(jobs, name, result, calm)
    print(f"\n{name}: {len(lost)} steps lost, next step {again[0].time - began:.1f} s after the requeue")
    assert not lost
    assert attempt(jobs, name) == 2


@pytest.mark.parametrize("lost", ["n1", "n2"])
def test_a_lost_node_costs_the_steps_since_the_last_stored_checkpoint(jobs: Jobs, calm: Result, lost: str) -> None:
    name = f"lost-{lost}"
    job = jobs.submit(name, step_s=STEP_S)
    jobs.wait_steps(name, 15)
    began = time.time()
    jobs.cluster.kill_node(lost)
    until(lambda: jobs.cluster.state(jobs.job_of(name)) == "PENDING", "the requeued job", ENDS_S)
    requeued = time.time()
    jobs.cluster.restart_node(lost)
    again = jobs.wait_steps(name, 1, restarts=1)
    result = jobs.result(job)
    repeated = as_calm(jobs, name, result, calm)
    print(f"\n{name}: {len(repeated)} steps lost, requeued {requeued - began:.1f} s after the loss, "
          f"next step {again[0].time - requeued:.1f} s later")  # fmt: skip
    assert len(repeated) <= 25, "more than two checkpoints of 10 steps"


def test_a_cancelled_job_stays_away_until_it_is_submitted_again(jobs: Jobs, calm: Result) -> None:
    job = jobs.submit("cancel", step_s=STEP_S)
    jobs.wait_steps("cancel", 5)
    number = jobs.job_of("cancel")
    jobs.cluster.call("scancel", number)
    until(lambda: jobs.cluster.state(number) == "CANCELLED", "the end of the job", ENDS_S)
    until(lambda: job.status().is_over, "its state", 60)
    status = job.status()
    assert (status.state, status.why) == ("lost", f"SLURM: CANCELLED, job {number}")
    again = submit(jobs.folder / "code-cancel" / "job.toml", "slurm")
    lost = as_calm(jobs, "cancel", jobs.result(again), calm)
    print(f"\ncancel: {len(lost)} steps lost")
    assert not lost


def test_a_requeued_sweep_saves_its_trials_and_continues(jobs: Jobs) -> None:
    job = jobs.submit("sweep", run="recorded_sweep.py", step_s=STEP_S, nodes=1, workers=1)
    jobs.wait_steps("sweep", 5)
    jobs.cluster.call("scontrol", "requeue", jobs.job_of("sweep"))
    jobs.wait_steps("sweep", 1, restarts=1)
    until(lambda: job.status().is_over, "the end", ENDS_S)
    assert job.status().state == "succeeded", jobs.said("sweep")
    trained = [each.step for each in jobs.steps("sweep")]
    print(f"\nsweep: {len(trained) - len(set(trained))} steps lost")
    assert len(trained) == len(set(trained)) > 100


def test_stopped_by_its_storage_it_is_not_requeued(jobs: Jobs) -> None:
    job = jobs.submit("stop", step_s=STEP_S)
    jobs.wait_steps("stop", 5)
    job.stop("enough")
    assert jobs.result(job).stopped == "enough"
    until(lambda: jobs.cluster.state(jobs.job_of("stop")) == "COMPLETED", "the end of the job", ENDS_S)
    assert SubmittedJob(jobs.storage, "stop").status().state == "stopped"
