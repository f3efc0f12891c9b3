"""The quickstart notebook runs from top to bottom, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.notebook import executed


@pytest.mark.variation  # tests/unit/jobs and tests/ray/cli run the same parts by default
def test_quickstart_runs(tmp_path: Path) -> None:
    # Else the client waits 2.5 s for a kernel that has nothing left to do.
    done = executed("quickstart", tmp_path, timeout_s=180, shutdown_kernel="immediate")
    assert "epoch 1: 16000 rows, 0 Parquet opens" in done.text
    assert "next position 3000" in done.text
    assert any("epoch 2/2 took" in page for page in done.pages), "progress"
    assert 'class="forebay"' in done.pages[-1]
    assert "Where the time went" in done.pages[-1]
