"""Late writes of an attempt that was taken over, on a local disk. tests/storage has S3."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.training.runs.attempts.late_laws import LateWriteLaws, encoded, restored

from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files import checkpoint_files
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles, spool_of
from forebay.training.checkpoint.files.claim import Claim
from forebay.training.checkpoint.files.names import SavedStep
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptEnd
from forebay.training.runs.attempts.start import start_attempt


class TestLateWritesOnDisk(LateWriteLaws):
    @pytest.fixture
    def run(self, tmp_path: Path) -> str:
        return str(tmp_path / "ctr")


def test_what_a_killed_process_left_on_this_machine_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are on the way to storage: complete before the claim, and only here."""
    run, spools = str(tmp_path / "ctr"), str(tmp_path / "spools")
    monkeypatch.setattr(checkpoint_files, "SPOOLS", spools)
    started = start_attempt(run, StartPolicy(), print)
    assert isinstance(started, Fence)
    started.release(AttemptEnd(how="failed"))
    spool = str(spool_of(f"{run}/checkpoints"))
    CheckpointFiles(CheckpointConfig(uri=spool, attempt=1)).write(encoded(30))
    second = start_attempt(run, StartPolicy(), print)
    assert isinstance(second, Fence)
    second.release(None)
    assert second.restorable == {"step-000000030"}
    assert restored(CheckpointConfig(uri=spool, attempt=2, restorable=second.restorable)) == SavedStep(1, 30)


def test_user_without_a_home_continues_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "SPOOLS", "~no-such-user/spools")
    for number in (1, 2):
        started = start_attempt(tmp_path / "ctr", StartPolicy(), print)
        assert isinstance(started, Fence)
        assert started.number == number
        started.release(AttemptEnd(how="failed"))


def test_claim_of_an_earlier_release_restores_everything() -> None:
    claim = Claim.from_json(b'{"number": 2, "token": "a", "host": "b"}', "uri")
    assert Fence(None, claim).restorable is None
