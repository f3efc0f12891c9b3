from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.train.commits_laws import CommitsLaws

from forebay.train.commits import CommitDirectory, Commits
from forebay.train.safekeeping import Safekeeping


class TestCommitDirectory(CommitsLaws):
    @pytest.fixture
    def safekeeping(self, tmp_path: Path) -> Safekeeping:
        return Safekeeping(uri=str(tmp_path / "commits"), keep_every=5)

    def open(self, safekeeping: Safekeeping) -> Commits:
        return CommitDirectory(safekeeping.uri, keep_last=safekeeping.keep_last, keep_every=safekeeping.keep_every)
