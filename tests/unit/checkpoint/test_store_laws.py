from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.checkpoint.store_laws import CommitsLaws

from forebay.checkpoint.checkpoint import CommitDirectory, Commits
from forebay.checkpoint.config import Safekeeping


class TestCommitDirectory(CommitsLaws):
    @pytest.fixture
    def safekeeping(self, tmp_path: Path) -> Safekeeping:
        return Safekeeping(uri=str(tmp_path / "commits"), keep_every=5)

    def open(self, safekeeping: Safekeeping) -> Commits:
        return CommitDirectory(safekeeping.uri, keep_last=safekeeping.keep_last, keep_every=safekeeping.keep_every)
