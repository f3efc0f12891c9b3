"""Our own figures: each script runs as a user runs it, in small, and writes the output that its readers expect."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

OWN = Path(__file__).parents[3] / "bench" / "own"
SCRIPTS = sorted(path.stem for path in OWN.glob("*.py") if "__spec__" in path.read_text() and path.stem != "verdict")
NUM_FIGURES = {
    "first_batch": 4,
    "lanes": 34,
    "memory": 2,
    "mixture": 4,
    "parts": 4,
    "plan": 3,
    "preparation": 3,
    "readers": 4,
    "slowdown": 2,
    "windows": 14,
}
AS_THE_OTHERS = ("first_batch", "lanes", "memory", "mixture", "parts", "preparation", "readers", "slowdown")
"""They take longest, and use the same parts of Forebay as the others."""


def test_all_scripts_are_known() -> None:
    assert set(NUM_FIGURES) == set(SCRIPTS)


@pytest.mark.timeout(1200)  # each starts a dozen processes
@pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=pytest.mark.variation if script in AS_THE_OTHERS else ()) for script in SCRIPTS],
)
def test_script_measures_prints_and_writes(script: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"bench.own.{script}", "--json", str(path), "--quick", "--folder", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    assert len(figures) == NUM_FIGURES[script]
    for figure in figures:
        assert list(figure) == ["figure", "target", "measured", "unit", "passed", "note"]
        assert math.isfinite(figure["measured"])
        assert figure["passed"] in (True, False, None)
        assert figure["figure"] in done.stdout
    assert [found.name for found in tmp_path.iterdir()] == [path.name], "its data is gone"


def test_a_cold_epoch_over_a_line_is_measured_in_a_few_cases_unless_all_are_asked_for() -> None:
    cold_epoch = importlib.import_module("bench.storage.cold_epoch")
    assert [(case.gbit_s, case.delay_s) for case in cold_epoch.SHORT] == [(1, 0.05), (1, 0.2)]
    assert set(cold_epoch.SHORT) < set(cold_epoch.ALL)
    assert len(cold_epoch.ALL) == 8


@pytest.mark.variation  # eight processes; the scripts above run the same command line
@pytest.mark.parametrize(("options", "num_figures"), [([], 4), (["--all"], 24)])
def test_a_cold_epoch_over_a_line(options: list[str], num_figures: int, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.storage.cold_epoch", "--json", str(path), "--quick", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    assert len(figures) == num_figures
    assert all(0 < figure["measured"] <= 1 for figure in figures)
