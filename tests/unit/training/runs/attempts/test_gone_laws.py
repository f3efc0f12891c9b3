"""Attempts whose claim is missing, on a local disk. tests/storage has S3."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.training.runs.attempts.gone_laws import GoneClaimLaws, begin, config_of, encoded

from forebay.errors import WriteFailed
from forebay.events import Event, Reported
from forebay.storage.atomic import write_atomically
from forebay.testing.drivers.bench import DriverBench
from forebay.training.checkpoint.files import claim as claim_module
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.claim import ClaimGone
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.runs.attempts import fence as fence_module
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.control import Control
from forebay.training.runs.result import Result, save_result

NOT_PERMITTED = 77


class TestGoneClaimsOnDisk(GoneClaimLaws):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs")


def rename(storage: Path) -> None:
    storage.rename(storage.with_name("renamed"))


@pytest.mark.parametrize("strike", [shutil.rmtree, rename])
def test_no_write_of_the_process_makes_the_storage_again(tmp_path: Path, strike: Callable[[Path], None]) -> None:
    """Also one that was on its way when the folder vanished, and asks no more."""
    storage = tmp_path / "runs"
    run = str(storage / "ctr")
    fence = begin(run)
    files = CheckpointFiles(config_of(run, fence))
    strike(storage)
    late = [
        lambda: write_atomically(f"{run}/report.html", b"page"),
        lambda: save_result(Result(name="ctr", path=run, plan_id="p", num_epochs=1)),
        lambda: fence.finish(1, "{}"),
        lambda: files._create(f"{run}/checkpoints/step-000000010"),
    ]
    for act in late:
        with pytest.raises((OSError, WriteFailed)):
            act()
    fence.release(None)
    assert not storage.exists()
    begin(run).release(None)
    assert storage.exists(), "a new start may make it"


def test_run_whose_folder_is_removed_ends_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "ASK_S", 0.05)
    monkeypatch.setattr(claim_module, "GONE_S", 0.2)
    bench = DriverBench(tmp_path)

    def strike(event: Event, _control: Control) -> None:
        if isinstance(event, Reported) and (tmp_path / "runs").exists():
            rename(tmp_path / "runs")  # at once: files that are written meanwhile hold up a removal
            shutil.rmtree(tmp_path / "renamed", ignore_errors=True)

    with pytest.raises(WriteFailed, match=r"is not there: the folder of the run was removed or renamed, or its share"):
        LocalDriver().run(bench.job("gone", step_s=0.02), [strike])
    assert not (tmp_path / "runs").exists()


def test_unmounted_share_is_left_alone(tmp_path: Path) -> None:
    """In a process with mounts of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.training.runs.attempts.test_gone_laws", str(tmp_path / "share")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NOT_PERMITTED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def unmount_under_a_run(share: Path) -> None:
    from tests.soak import mounts

    mounts.make_private()
    if problem := mounts.problem():
        print(problem)
        sys.exit(NOT_PERMITTED)
    mounts.mount_tmpfs(share, 1 << 20)
    run = str(share / "ctr")
    fence = begin(run)
    assert isinstance(fence, Fence)
    files = CheckpointFiles(config_of(run, fence))
    files.write(encoded(10))
    mounts.unmount_below(share)
    for act in (fence.ask, lambda: files.write(encoded(20)), lambda: write_atomically(f"{run}/result.json", b"{}")):
        with pytest.raises(OSError, match="not there|No such file"):
            act()
    with pytest.raises(ClaimGone):
        files.check_fence()
    fence.release(None)
    assert list(share.iterdir()) == []


if __name__ == "__main__":
    unmount_under_a_run(Path(sys.argv[1]))
