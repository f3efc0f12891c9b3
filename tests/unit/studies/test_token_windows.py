"""The study of token windows runs on a small text, as many steps on both sides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[3] / "studies" / "token_windows.py"


@pytest.mark.variation  # a study: no part of the platform is tested here alone
def test_both_orders_train_as_many_steps(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 100)
    done = subprocess.run(
        [sys.executable, STUDY, text, "--epochs", "2"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["plan", "random offsets"]
    steps = [int(re.search(r"(\d+) steps", line)[1]) for line in lines]
    assert steps[0] == steps[1] > 0
