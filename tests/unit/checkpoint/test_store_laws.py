from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.checkpoint.store_laws import CommitsLaws

from forebay.checkpoint.checkpoint import CheckpointStore, DirectoryStore
from forebay.checkpoint.config import CheckpointConfig


class TestDirectoryStore(CommitsLaws):
    @pytest.fixture
    def safekeeping(self, tmp_path: Path) -> CheckpointConfig:
        return CheckpointConfig(uri=str(tmp_path / "commits"), keep_every=5)

    def open(self, safekeeping: CheckpointConfig) -> CheckpointStore:
        return DirectoryStore(safekeeping.uri, keep_last=safekeeping.keep_last, keep_every=safekeeping.keep_every)
