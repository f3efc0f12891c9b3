"""`forebay ps`, `scale` and `stop` on a live cluster: their output, and their effect on a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.actor import ActorHandle

from forebay.cli.app import main
from forebay.driver.elastic.coordinator import Coordinator
from forebay.events import Reported, Started
from forebay.ray_cluster.actors import NAMESPACE, RUN_PREFIX
from forebay.runs.status import RunStatus

Call = Callable[..., Any]
Make = Callable[..., ActorHandle]


@pytest.fixture
def forebay(ray_session: None, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process, on the cluster of the tests. Returns code, output and errors."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def under_way(ray_session: None) -> Iterator[Make]:
    """Coordinators of runs without drivers."""
    made = []

    def make(name: str, target: int = 2, most: int = 4) -> ActorHandle:
        status = RunStatus(
            name=name,
            driver="ray",
            target=target,
            min_workers=min(target, 2) if most == target else 1,
            max_workers=most,
            epochs=40,
            started_at=time.time(),
            node="here",
            path=f"runs/{name}",
        )
        placed = ray.remote(Coordinator).options(name=f"{RUN_PREFIX}{name}", namespace=NAMESPACE, num_cpus=0)
        made.append(placed.remote(status))
        ray.get(made[-1].target.remote())
        return made[-1]

    yield make
    for actor in made:
        ray.kill(actor)


def test_ps_says_how_runs_stand(forebay: Call, under_way: Make) -> None:
    assert forebay("ps") == (0, "No run is under way on this cluster.\n", "")
    assert json.loads(forebay("ps", "--json")[1]) == {"runs": [], "sweeps": []}
    ctr, _ = under_way("ctr"), under_way("llm")
    ray.get(ctr.report.remote(Started(name="ctr", world_size=1, epochs=40, num_batches=8)))
    ray.get(ctr.report.remote(Reported(step=12, epoch=1, position=64, metrics={}, rows=184)))
    code, table, _ = forebay("ps")
    assert code == 0
    row = next(line for line in table.splitlines() if "ctr" in line)
    cells = re.split(r" {2,}", row.strip())[:6]
    assert cells == ["ctr", "ray", "training", "1 -> 2 (1 to 4)", "2 of 40", "12"]
    runs = json.loads(forebay("ps", "--json")[1])["runs"]
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
    assert ray.get(ctr.commands.remote()).stop == "seen enough"


def test_what_cannot_be_is_refused_and_changes_nothing(forebay: Call, under_way: Make) -> None:
    ctr, _ = under_way("ctr"), under_way("fixed", target=2, most=2)
    for number in (0, 5):
        code, _, error = forebay("scale", "ctr", number)
        assert code == 2
        assert f"InvalidOption: {number} workers are out of bounds for run 'ctr', whose job allows 1 to 4" in error
        assert "nothing was changed, the target is still 2" in error
    assert ray.get(ctr.target.remote()) == 2
    code, _, error = forebay("scale", "fixed", 2)
    assert (code, "run 'fixed' has a fixed number of workers, 2" in error) == (2, True)
    for words in (("scale", "crt", 2), ("stop", "crt")):
        code, _, error = forebay(*words)
        assert code == 2
        assert "no run named 'crt' is under way on this cluster. Did you mean 'ctr'? Under way: ctr, fixed." in error
    facts = json.loads(forebay("scale", "ctr", 9, "--json")[2])
    assert (facts["error"], facts["facts"]["max_workers"]) == ("InvalidOption", 4)


def test_no_cluster(ray_off: None, tmp_path: Path) -> None:
    """The command runs in its own process, without a Ray and without one to find."""

    def ps(address: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forebay", "ps"]
        environment = {**os.environ, "RAY_ADDRESS": address}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    said = ps("127.0.0.1:1")
    assert said.returncode == 2
    assert said.stderr.startswith("InvalidOption: RAY_ADDRESS=127.0.0.1:1 does not answer")
