"""Claims of a fleet in the storage of its jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidOption, ReadFailed
from forebay.fleet.federation.run_storage import RunStorage
from forebay.fleet.lifecycle.states import Target
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.attempts.stored_request import send_request

WEST = Target(cluster="west", sku="h100", market="spot", workers=4)
EAST = Target(cluster="east", sku="h100", market="on-demand", workers=2)


@pytest.fixture
def spec(tmp_path: Path) -> fb.JobSpec:
    return fb.JobSpec(name="ctr", storage=str(tmp_path), task=(fb.fleet.Task(command=("true",)),))


def test_one_of_two_claims_stands_with_its_place(spec: fb.JobSpec) -> None:
    storage, task = RunStorage(), spec.task[0]
    assert storage.newest_claim(spec, task) is None
    assert storage.claim(spec, task, 1, WEST)
    assert not storage.claim(spec, task, 1, EAST)
    claim = storage.newest_claim(spec, task)
    assert claim is not None
    assert (claim.number, claim.target, claim.how) == (1, WEST, None)
    assert storage.token(spec, task, 1)
    with pytest.raises(ReadFailed, match="not the newest one"):
        storage.token(spec, task, 2)


def test_end_and_orders_are_seen(spec: fb.JobSpec, tmp_path: Path) -> None:
    storage, task = RunStorage(stop_s=0.0), spec.task[0]
    storage.claim(spec, task, 1, WEST)
    assert not storage.is_stopped(spec, task)
    send_request(str(tmp_path), spec.run_name(task), stop="enough")
    assert storage.is_stopped(spec, task)
    # A run has time to end by itself.
    assert not RunStorage().is_stopped(spec, task)
    AttemptFiles(str(tmp_path / spec.run_name(task))).end(1, AttemptEnd(how="finished"))
    claim = storage.newest_claim(spec, task)
    assert claim is not None and claim.how == "finished"


def test_order_that_was_obeyed_stops_no_later_submission(spec: fb.JobSpec, tmp_path: Path) -> None:
    storage, task = RunStorage(stop_s=0.0), spec.task[0]
    storage.claim(spec, task, 1, WEST)
    send_request(str(tmp_path), spec.run_name(task), stop="enough")
    storage.end(spec, task, 1, "stopped", "enough")
    assert not storage.is_stopped(spec, task)
    # A controller was killed before it deleted the RayJob: the next one goes on with that.
    assert storage.is_stopped(spec, task, live=1) and not storage.is_stopped(spec, task, live=2)
    storage.claim(spec, task, 2, WEST)
    assert not storage.is_stopped(spec, task)
    assert (storage.failures(spec, task, since=1, before=2), storage.failures(spec, task, since=2, before=3)) == (0, 0)


def test_the_first_record_of_an_end_stays(spec: fb.JobSpec) -> None:
    storage, task = RunStorage(), spec.task[0]
    storage.claim(spec, task, 1, WEST)
    storage.end(spec, task, 1, "failed", "its head was lost")
    storage.end(spec, task, 1, "stopped", "stopped by its user")
    claim = storage.newest_claim(spec, task)
    assert claim is not None
    assert (claim.how, claim.why) == ("failed", "its head was lost")


def test_run_that_no_fleet_has_placed_is_told(spec: fb.JobSpec, tmp_path: Path) -> None:
    create_attempt(str(tmp_path / spec.run_name(spec.task[0])), 1)
    with pytest.raises(InvalidOption, match="started outside of the fleet"):
        RunStorage().newest_claim(spec, spec.task[0])
