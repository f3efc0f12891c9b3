"""`forebay jobs --ray`, `scale` and `stop` on a live cluster: their output, and their effect on a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from forebay.events import Reported, Started

Call = Callable[..., Any]
Make = Callable[..., ActorHandle]


def test_ps_says_how_runs_stand(forebay: Call, under_way: Make) -> None:
    assert forebay("jobs", "--ray") == (0, "No run is under way on this cluster.\n", "")
    assert json.loads(forebay("jobs", "--ray", "--json")[1]) == {"runs": [], "sweeps": []}
    ctr, _ = under_way("ctr"), under_way("llm")
    ray.get(ctr.report.remote(Started(name="ctr", world_size=1, epochs=40, num_batches=8)))
    ray.get(ctr.report.remote(Reported(step=12, epoch=1, position=64, metrics={}, rows=184)))
    code, table, _ = forebay("jobs", "--ray")
    assert code == 0
    row = next(line for line in table.splitlines() if "ctr" in line)
    cells = re.split(r" {2,}", row.strip())[:6]
    assert cells == ["ctr", "ray", "training", "1 -> 2 (1 to 4)", "2 of 40", "12"]
    runs = json.loads(forebay("jobs", "--ray", "--json")[1])["runs"]
    assert [(run["name"], run["world_size"], run["target"], run["step"]) for run in runs] == [
        ("ctr", 1, 2, 12),
        ("llm", 0, 2, 0),
    ]


def test_scale_sets_the_target(forebay: Call, under_way: Make) -> None:
    ctr = under_way("ctr")
    assert forebay("scale", "ctr", 4) == (0, "ctr: target 2 -> 4 workers; 0 train now.\n", "")
    assert ray.get(ctr.target.remote()) == 4
    assert json.loads(forebay("scale", "ctr", 1, "--json")[1])["before"] == 4
    assert ray.get(ctr.target.remote()) == 1


def test_stop_is_asked_with_a_reason(forebay: Call, under_way: Make) -> None:
    ctr = under_way("ctr")
    assert "ctr: ends at its next checkpoint" in forebay("stop", "ctr", "--reason", "seen enough")[1]
    assert ray.get(ctr.request.remote()).stop == "seen enough"


def test_what_cannot_be_is_refused_and_changes_nothing(forebay: Call, under_way: Make) -> None:
    ctr, _ = under_way("ctr"), under_way("fixed", min_workers=2, max_workers=2)
    for number in (0, 5):
        code, _, error = forebay("scale", "ctr", number)
        assert code == 3
        assert f"InvalidOption: {number} workers are out of bounds for run 'ctr', whose job allows 1 to 4" in error
        assert "nothing was changed. Give a number from 1 to 4." in error
    assert ray.get(ctr.target.remote()) == 2
    code, _, error = forebay("scale", "fixed", 2)
    assert (code, "run 'fixed' has a fixed number of workers, 2" in error) == (3, True)
    for words in (("scale", "crt", 2), ("stop", "crt")):
        code, _, error = forebay(*words)
        assert code == 3
        assert "no run named 'crt' is under way on this cluster. Did you mean 'ctr'? Under way: ctr, fixed." in error
    facts = json.loads(forebay("scale", "ctr", 9, "--json")[2])
    assert (facts["error"], facts["facts"]["max_workers"]) == ("InvalidOption", 4)


def test_no_cluster(ray_off: None, tmp_path: Path) -> None:
    """The command runs in its own process, without a Ray and without one to find."""

    def ps(address: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forebay", "jobs", "--ray"]
        environment = {**os.environ, "RAY_ADDRESS": address}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    said = ps("127.0.0.1:1")
    assert said.returncode == 3
    assert said.stderr.startswith("InvalidOption: RAY_ADDRESS=127.0.0.1:1 does not answer")
