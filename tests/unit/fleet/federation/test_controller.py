"""Controller of a fleet over real storage.

A job that is submitted again after its end begins again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fleet_simulation.made import made_fleet, simulated

import forebay as fb
from forebay.fleet.client.submission import JobFiles
from forebay.fleet.client.submit import submit
from forebay.fleet.federation.controller import FleetController
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.stored_request import send_request


@pytest.mark.parametrize("is_journal_lost", [False, True])
def test_job_submitted_again_after_a_stop_begins_again(
    tmp_path: Path, is_journal_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetController, "_follow_log", lambda *_: None)  # simulated pods have no logs
    shape = fb.fleet.TaskWorkers(min=1, cpu="32", memory="256Gi", gpus=8)
    spec = fb.JobSpec(
        name="ctr", storage=str(tmp_path / "runs"), task=(fb.fleet.Task(command=("true",), workers=shape),)
    )
    files, attempts = JobFiles(storage=spec.storage, name="ctr"), AttemptFiles(f"{spec.storage}/ctr")
    journal, clusters = JobJournal(":memory:"), simulated(made_fleet(1), 4)
    ray_jobs = clusters.clusters["c00"].jobs

    def controller() -> FleetController:
        return FleetController(made_fleet(1), [spec.storage], journal, clusters=clusters)  # type: ignore[arg-type]

    def rounds(begin: float) -> None:
        made = controller()
        for now in range(8):
            made.step(begin + 10.0 * now)

    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").touch()
    submit(spec, "fleet", folder=code)
    rounds(0.0)
    (first,) = ray_jobs.values()
    send_request(spec.storage, "ctr", stop="enough")
    attempts.end(1, AttemptEnd(how="stopped", why="enough"))
    clusters.clusters["c00"].end(first, "stopped", "", 90.0)
    rounds(100.0)
    ended = files.ended(1)
    assert ended is not None and ended.how == "stopped"
    if is_journal_lost:
        journal = JobJournal(":memory:")
    submit(spec, "fleet", folder=code)
    newest = files.newest()
    assert newest is not None and (newest.number, newest.after) == (2, {"ctr": 1})
    rounds(200.0)
    assert files.ended(2) is None, "it ended as the one before"
    claim = attempts.newest()
    assert claim is not None and claim.number == 2
    assert len(ray_jobs) == 2
