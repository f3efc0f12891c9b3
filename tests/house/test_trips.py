"""Traced trips: how many modules a reader follows from a call to its result. Prints what it counts (`pytest -s`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST_MODULES = {"cold batch": 68, "cached batch": 57, "run": 84, "commit": 46}


def test_trips_stay_short(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.house.trips", str(tmp_path)],
        check=True, capture_output=True, text=True, cwd=repository,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    for trip, calls in found.items():
        print(f"{trip}: {len(calls['modules'])} modules, {calls['functions']} functions")
    counts = {trip: len(calls["modules"]) for trip, calls in found.items()}
    assert counts.keys() == MOST_MODULES.keys()
    assert {trip: calls["modules"] for trip, calls in found.items() if counts[trip] > MOST_MODULES[trip]} == {}
