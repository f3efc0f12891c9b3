"""Commits in a real object store: the laws, and uploads that are cut short or refused."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.checkpoint.store_laws import CommitsLaws, commit_at, newest_step

from forebay.checkpoint.checkpoint import CheckpointStore, DirectoryStore
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.files import CheckpointFiles
from forebay.checkpoint.local_store import SpooledStore
from forebay.errors import WriteFailed


@pytest.fixture
def safekeeping(s3: Any) -> CheckpointConfig:
    return CheckpointConfig(uri=s3.uri(f"{uuid.uuid4().hex}/commits"), keep_every=5)


class TestDirectoryStoreOnServers(CommitsLaws):
    def open(self, safekeeping: CheckpointConfig) -> CheckpointStore:
        return DirectoryStore(safekeeping.uri, keep_last=safekeeping.keep_last, keep_every=safekeeping.keep_every)


class TestSpooledStoreOnServers(CommitsLaws):
    @pytest.fixture(autouse=True)
    def spools_are_here(self, tmp_path: Path) -> None:
        self._spools = str(tmp_path / "spools")

    def open(self, safekeeping: CheckpointConfig) -> CheckpointStore:
        return SpooledStore(safekeeping, self._spools)


@pytest.mark.parametrize("part", ["state.pt", "commit.json"])
def test_an_upload_that_is_cut_short_is_never_restored(
    safekeeping: CheckpointConfig, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = CheckpointFiles._write

    def cut(self: CheckpointFiles, path: str, contents: bytes) -> None:
        if self.is_local or not path.endswith(part):
            return original(self, path, contents)
        original(self, path, contents[: len(contents) // 2])
        raise OSError("connection reset")

    with closing(SpooledStore(safekeeping, str(tmp_path / "spools"))) as commits:
        commits.save(commit_at(1))
        commits.flush()
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointFiles, "_write", cut)
            commits.save(commit_at(2))
            with pytest.raises(WriteFailed, match="commits.*connection reset"):
                commits.flush()
        assert DirectoryStore(safekeeping.uri).newest().step == 1  # type: ignore[union-attr]
        assert newest_step(commits) == 2
        commits.flush()
    assert CheckpointFiles(safekeeping).steps() == [2, 1]
