"""The notebook on sweeps runs from top to bottom, as a reader would run it, with its own Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.notebook import executed


# 45 CPU seconds. The quickstart shows that notebooks run, and tests/ray/sweep has what this one calls.
@pytest.mark.variation
@pytest.mark.timeout(900)  # starting a process takes long on a busy machine
def test_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_off: None) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = executed("sweep", tmp_path, timeout_s=600)
    assert "best auc 0." in done.text
    assert "the same best trial: True" in done.text
    table = next(html for html in done.pages if html.startswith("<p><b>click</b>"))
    assert "2 finished" in table
