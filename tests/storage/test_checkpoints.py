"""Checkpoints in a real object store.

The laws, and uploads that are interrupted or refused.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws, checkpoint_at, newest_step

from forebay.errors import WriteFailed
from forebay.training.checkpoint.checkpoint import CheckpointStore, DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.local_store import SpooledStore


@pytest.fixture
def config(s3: Any) -> CheckpointConfig:
    return CheckpointConfig(uri=s3.uri(f"{uuid.uuid4().hex}/checkpoints"), keep_every=5)


class TestDirectoryStoreOnServers(CheckpointStoreLaws):
    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return DirectoryStore(config.uri, keep_last=config.keep_last, keep_every=config.keep_every)


class TestSpooledStoreOnServers(CheckpointStoreLaws):
    # A spooled store of this machine has them.
    variations = frozenset(
        {
            "test_a_larger_state_and_a_smaller_one",
            "test_a_state_that_could_not_be_read_back_is_refused",
            "test_nothing_saved_is_none",
            "test_only_the_shards_that_are_asked_for_are_read",
            "test_the_same_step_again_replaces_it",
            "test_what_was_saved_or_found_is_a_copy",
        }
    )

    @pytest.fixture(autouse=True)
    def spools_are_here(self, tmp_path: Path) -> None:
        self._spools = str(tmp_path / "spools")

    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return SpooledStore(config, self._spools)


@pytest.mark.parametrize("part", ["shard-00000.pt", "checkpoint.json"])
def test_an_upload_that_is_cut_short_is_never_restored(
    config: CheckpointConfig, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = CheckpointFiles._write

    def cut(self: CheckpointFiles, path: str, contents: bytes) -> None:
        if self.is_local or not path.endswith(part):
            return original(self, path, contents)
        original(self, path, contents[: len(contents) // 2])
        raise OSError("connection reset")

    with closing(SpooledStore(config, str(tmp_path / "spools"))) as commits:
        commits.save(checkpoint_at(1))
        commits.flush()
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointFiles, "_write", cut)
            commits.save(checkpoint_at(2))
            with pytest.raises(WriteFailed, match="checkpoint.*connection reset"):
                commits.flush()
        assert DirectoryStore(config.uri).newest().step == 1  # type: ignore[union-attr]
        assert newest_step(commits) == 2
        commits.flush()
    assert CheckpointFiles(config).steps() == [2, 1]
