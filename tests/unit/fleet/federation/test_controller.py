"""Controller of a fleet over real storage.

A job that is submitted again after its end begins again.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fleet_simulation.made import made_fleet, simulated

import forebay as fb
from forebay.fleet.client.submission import JobFiles
from forebay.fleet.client.submit import submit
from forebay.fleet.federation.controller import FleetController
from forebay.fleet.lifecycle.decide import Phase
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, How
from forebay.training.runs.attempts.stored_request import send_request


class ControllerBench:
    """A controller of one simulated cluster, and a job of one task."""

    def __init__(self, folder: Path) -> None:
        shape = fb.fleet.TaskWorkers(min=1, cpu="32", memory="256Gi", gpus=8)
        task = fb.fleet.Task(command=("true",), workers=shape)
        self.spec = fb.JobSpec(name="ctr", storage=str(folder / "runs"), task=(task,))
        self.files = JobFiles(storage=self.spec.storage, name="ctr")
        self.attempts = AttemptFiles(f"{self.spec.storage}/ctr")
        self.journal, self.clusters = JobJournal(":memory:"), simulated(made_fleet(1), 4)
        self.ray_jobs = self.clusters.clusters["c00"].jobs
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "a.py").touch()

    def submit(self, spec: fb.JobSpec) -> int:
        """Number of the submission."""
        return submit(spec, "fleet", folder=self.code, replace_spec=True).submission.number

    def rounds(self, begin: float) -> None:
        clusters: Any = self.clusters
        made = FleetController(made_fleet(1), [self.spec.storage], self.journal, clusters=clusters)
        for now in range(8):
            made.step(begin + 10.0 * now)

    def end(self, how: How, at: float) -> None:
        """End the newest attempt."""
        claim = self.attempts.newest()
        assert claim is not None
        self.attempts.end(claim.number, AttemptEnd(how=how, why="enough"))
        phase: Phase = "succeeded" if how == "finished" else how
        self.clusters.clusters["c00"].end(list(self.ray_jobs.values())[-1], phase, "", at)

    @property
    def name(self) -> str:
        """Name of its RayJobs, without their number."""
        return PlacedAttempt(spec=self.spec, task=self.spec.task[0], number=0, sku="").prefix

    @property
    def newest(self) -> int:
        claim = self.attempts.newest()
        return 0 if claim is None else claim.number


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControllerBench:
    monkeypatch.setattr(FleetController, "_follow_log", lambda *_: None)  # simulated pods have no logs
    return ControllerBench(tmp_path)


@pytest.mark.parametrize("is_journal_lost", [False, True])
def test_job_submitted_again_after_a_stop_begins_again(bench: ControllerBench, is_journal_lost: bool) -> None:
    bench.submit(bench.spec)
    bench.rounds(0.0)
    send_request(bench.spec.storage, "ctr", stop="enough")
    bench.end("stopped", 90.0)
    bench.rounds(100.0)
    ended = bench.files.ended(1)
    assert ended is not None and ended.how == "stopped"
    if is_journal_lost:
        bench.journal = JobJournal(":memory:")
    bench.submit(bench.spec)
    newest = bench.files.newest()
    assert newest is not None and (newest.number, newest.after) == (2, {"ctr": 1})
    bench.rounds(200.0)
    assert bench.files.ended(2) is None, "it ended as the one before"
    assert bench.newest == 2 and len(bench.ray_jobs) == 2


@pytest.mark.parametrize("is_journal_lost", [False, True])
@pytest.mark.parametrize("how", ["finished", "failed"])
def test_another_specification_is_what_the_next_attempt_runs(
    bench: ControllerBench, how: How, is_journal_lost: bool
) -> None:
    """Also after a success, which is not the new specification's."""

    def lose_journal() -> None:
        if is_journal_lost:
            bench.journal = JobJournal(":memory:")

    bench.spec = replace(bench.spec, task=(replace(bench.spec.task[0], retries=0),))
    bench.submit(bench.spec)
    bench.rounds(0.0)
    bench.end(how, 90.0)
    bench.rounds(100.0)
    assert bench.files.ended(1) is not None
    changed = replace(bench.spec, task=(replace(bench.spec.task[0], command=("false",)),))
    lose_journal()
    assert bench.submit(changed) == 2
    bench.rounds(200.0)
    assert bench.files.ended(2) is None and bench.newest == 2
    ran = list(bench.ray_jobs.values())[-1].attempt.spec
    assert ran.task[0].command == ("false",), "the earlier specification runs"
    lose_journal()
    bench.rounds(300.0)
    assert bench.newest == 2
    bench.end("finished", 390.0)
    lose_journal()
    bench.rounds(400.0)
    ended = bench.files.ended(2)
    assert ended is not None and ended.how == "succeeded"
    assert bench.submit(changed) == 2 and bench.newest == 2


def test_a_job_whose_folder_was_removed_is_trained_again(bench: ControllerBench) -> None:
    bench.submit(bench.spec)
    bench.rounds(0.0)
    bench.end("finished", 90.0)
    bench.rounds(100.0)
    shutil.rmtree(bench.files.folder)
    assert bench.submit(bench.spec) == 1
    bench.rounds(200.0)
    assert bench.files.ended(1) is None, "its result is the removed one"
    assert sorted(bench.ray_jobs) == [f"{bench.name}-1", f"{bench.name}-2"] and bench.newest == 2
    bench.end("finished", 290.0)
    bench.rounds(300.0)
    ended = bench.files.ended(1)
    assert ended is not None and ended.how == "succeeded"


def test_a_job_submitted_again_waits_behind_those_that_wait(bench: ControllerBench) -> None:
    bench.spec = replace(bench.spec, task=(replace(bench.spec.task[0], retries=0),))
    bench.submit(bench.spec)
    bench.rounds(0.0)
    bench.end("failed", 90.0)
    bench.rounds(100.0)
    other = replace(bench.spec, name="other")
    bench.submit(other)
    bench.rounds(200.0)
    bench.submit(bench.spec)
    bench.rounds(300.0)
    assert [each.name for each in bench.journal.entries(live=True)] == ["other", "ctr"]
