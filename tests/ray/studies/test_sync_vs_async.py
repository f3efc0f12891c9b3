"""The demonstration of stale updates, in small: it runs, and its figures agree with its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parents[3] / "studies" / "sync_vs_async.py"


@pytest.mark.variation  # a study: no part of the platform is tested here alone
def test_stale_updates_blow_up_what_synchronous_ones_do_not(tmp_path: Path) -> None:
    options = ["--rates", "0.1", "--fetch-every", "1", "40", "--workers", "2", "--updates", "240", "--seeds", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, JOB, *options, "--out", tmp_path],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in (tmp_path / "sync_vs_async.md").read_text().splitlines()[2:]]
    assert [row[1] for row in rows] == [
        "synchronous",
        "asynchronous, fetched every 1",
        "asynchronous, fetched every 40",
    ]
    staleness = [float(row[2]) for row in rows]
    peaks, losses = ([float(row[column].split()[0]) for row in rows] for column in (3, 5))
    assert staleness[0] == 0 and staleness[2] >= 19
    assert peaks[2] > 2 * peaks[0]
    assert losses[2] > 2 * losses[0]
    assert (tmp_path / "sync_vs_async.png").stat().st_size > 1000
