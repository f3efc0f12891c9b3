"""Checkpoints of the local driver with remote storage.

`memory://` is not this machine's disk either.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import closing
from pathlib import Path

import fsspec
import pytest
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws, checkpoint_at, newest_step, save_in_parts

from forebay.errors import Fenced, InvalidOption, WriteFailed
from forebay.storage.atomic import write_atomically
from forebay.training.checkpoint.checkpoint import CheckpointStore, DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.local_store import OWNER, SpooledStore, open_local_checkpoints


@pytest.fixture
def config() -> CheckpointConfig:
    return CheckpointConfig(uri=f"memory://{uuid.uuid4().hex}/checkpoints", keep_every=5)


class TestSpooledStore(CheckpointStoreLaws):
    @pytest.fixture(autouse=True)
    def spools_are_here(self, tmp_path: Path) -> None:
        self._spools = str(tmp_path / "spools")

    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return SpooledStore(config, self._spools)


def test_a_local_folder_needs_no_spool(tmp_path: Path) -> None:
    assert isinstance(open_local_checkpoints(CheckpointConfig(uri=str(tmp_path))), DirectoryStore)
    assert isinstance(open_local_checkpoints(CheckpointConfig(uri="memory://elsewhere")), SpooledStore)


def test_a_user_without_a_home_is_told_to_set_one(config: CheckpointConfig) -> None:
    with closing(SpooledStore(config, "~no-such-user/spools")) as commits, pytest.raises(InvalidOption, match="HOME"):
        commits.newest()


def test_a_local_folder_that_refuses_is_named(tmp_path: Path) -> None:
    with closing(open_local_checkpoints(CheckpointConfig(uri=str(tmp_path / "checkpoints")))) as commits:
        commits.save(checkpoint_at(1))
        (tmp_path / "checkpoints" / "step-000000002").write_text("no folder")
        with pytest.raises(
            WriteFailed, match=rf"checkpoint of step 2 could not be written to {tmp_path}/checkpoints .*make room"
        ):
            commits.save(checkpoint_at(2))
        assert newest_step(commits) == 1


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    return tmp_path / "spools"


def left_behind(config: CheckpointConfig, spools: Path, *steps: int) -> None:
    """Make the spool of a killed process.

    It was killed after the first upload.
    """
    commits = SpooledStore(config, str(spools))
    for step in steps:
        commits.save(checkpoint_at(step))
        if step == steps[0]:
            commits.flush()
    assert commits._opened is not None
    commits._opened.uploader.close()


def test_what_a_killed_process_saved_is_found_and_uploaded_by_the_next(config: CheckpointConfig, spools: Path) -> None:
    left_behind(config, spools, 1, 2, 3)
    assert CheckpointFiles(config).steps() == [1]
    with closing(SpooledStore(config, str(spools))) as commits:
        assert newest_step(commits) == 3
        commits.flush()
    assert CheckpointFiles(config).steps() == [3, 1]
    assert list(spools.iterdir()) == [], "all of it is in storage"


def test_a_spool_of_a_run_that_was_deleted_is_no_commit_of_the_next(config: CheckpointConfig, spools: Path) -> None:
    left_behind(config, spools, 1, 2, 3)
    fsspec.filesystem("memory").rm(config.uri.removeprefix("memory:/"), recursive=True)
    with closing(SpooledStore(config, str(spools))) as commits:
        assert commits.newest() is None


def test_a_spool_is_worthless_once_the_run_went_on_elsewhere(
    config: CheckpointConfig, spools: Path, tmp_path: Path
) -> None:
    left_behind(config, spools, 1, 9)
    with closing(SpooledStore(config, str(tmp_path / "another machine"))) as elsewhere:
        assert newest_step(elsewhere) == 1
        elsewhere.save(checkpoint_at(2))
        elsewhere.flush()
    with closing(SpooledStore(config, str(spools))) as commits:
        assert newest_step(commits) == 2


def test_storage_that_refuses_is_an_error_at_flush_and_nothing_is_lost(
    config: CheckpointConfig, spools: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = CheckpointFiles._write

    def refuse(self: CheckpointFiles, path: str, contents: bytes) -> None:
        if not self.is_local:
            raise OSError("quota exceeded")
        original(self, path, contents)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFiles, "_write", refuse)
        with closing(SpooledStore(config, str(spools))) as commits:
            commits.save(checkpoint_at(1))
            with pytest.raises(WriteFailed, match=rf"{config.uri} .*quota exceeded.*has room"):
                commits.flush()
    assert len(list(spools.iterdir())) == 1
    with closing(SpooledStore(config, str(spools))) as commits:
        assert newest_step(commits) == 1
        commits.flush()
    assert CheckpointFiles(config).steps() == [1]


def test_a_disk_that_refuses_is_named_and_so_is_the_storage(config: CheckpointConfig, spools: Path) -> None:
    """A file takes the place of the folder: also root may not write below it."""
    with closing(SpooledStore(config, str(spools))) as commits:
        commits.save(checkpoint_at(1))
        commits.flush()
        (folder,) = spools.iterdir()
        shutil.rmtree(folder)
        folder.write_text("a file")
        others = [SpooledStore(config, str(spools)) for _ in range(2)]
        for save in (lambda: commits.save(checkpoint_at(2)), lambda: save_in_parts([commits, *others], 2)):
            with pytest.raises(WriteFailed, match=rf"step 2 .*{folder}.*{config.uri}, which has those before it"):
                save()
    with pytest.raises(WriteFailed, match=rf"this machine could not be written to {folder}"):
        SpooledStore(config, str(spools)).newest()


def test_a_folder_emptied_by_a_later_attempt_ends_the_earlier_one(
    tmp_path: Path, spools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a full disk, after which the earlier one would be tried again."""

    def emptied(*_: object) -> None:
        raise FileNotFoundError

    claim = tmp_path / "000002.json"
    config = CheckpointConfig(uri=f"memory://{uuid.uuid4().hex}/checkpoints", attempt=1, next_claim=str(claim))
    with closing(SpooledStore(config, str(spools))) as commits:
        commits.save(checkpoint_at(1))
        commits.flush()
        claim.write_text("{}")
        monkeypatch.setattr(CheckpointFiles, "write", emptied)
        others = [SpooledStore(config, str(spools)) for _ in range(2)]
        for save in (lambda: commits.save(checkpoint_at(2)), lambda: save_in_parts([commits, *others], 2)):
            with pytest.raises(Fenced):
                save()


def test_the_word_beside_the_commits_is_no_commit(config: CheckpointConfig) -> None:
    write_atomically(f"{config.uri}/{OWNER}", b"somebody")
    assert CheckpointFiles(config).steps() == []
