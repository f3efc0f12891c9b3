from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws

from forebay.training.checkpoint.checkpoint import CheckpointStore, DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig


class TestDirectoryStore(CheckpointStoreLaws):
    @pytest.fixture
    def config(self, tmp_path: Path) -> CheckpointConfig:
        return CheckpointConfig(uri=str(tmp_path / "checkpoints"), keep_every=5)

    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return DirectoryStore(config.uri, keep_last=config.keep_last, keep_every=config.keep_every)
