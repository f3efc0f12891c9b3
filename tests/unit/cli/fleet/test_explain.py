"""`forebay fleet explain` needs no cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.test_fleet_file import FLEET

from forebay.fleet.kube.api import KubeApi

Call = Callable[..., Any]
JOB = """\
name = "ctr-7"
storage = "s3://lake/runs"
[[task]]
name = "prepare"
command = ["python", "prepare.py"]
[[task]]
name = "train"
after = ["prepare"]
run = "train.py"
args = {epochs = 3}
workers = {min = 2, max = 4, cpu = 12, memory = "96Gi", gpus = 1, spot = "prefer"}
"""
TRAIN = """
import forebay as fb
raise SystemExit("the job file is run")
def job(epochs: int = 1) -> fb.Job: ...
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a request was sent")

    monkeypatch.setattr(KubeApi, "__init__", refuse)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def test_a_job_is_explained_without_a_cluster(forebay: Call, files: Path) -> None:
    said = forebay("fleet", "explain", files / "job.toml", "--fleet", files / "fleet.toml")
    assert said.code == 0, said.err
    assert max(map(len, said.out.splitlines())) <= 80
    assert "1. eu-1: h100, spot, 2.50/h for 2" in said.out
    assert "2. eu-1: h100, on-demand, 7.50/h for 2" in said.out
    assert "-  us-1: it has cpu, and none of 1 GPUs a worker" in said.out
    assert "entrypoint: forebay run train.py epochs=3" in said.out
    assert said.out.index("task prepare") < said.out.index("task train")


def test_a_dry_run_of_submit_says_the_same(forebay: Call, files: Path) -> None:
    words = (files / "job.toml", "--fleet", files / "fleet.toml", "--json")
    assert forebay("submit", *words, "--dry-run").out == forebay("fleet", "explain", *words).out


def test_its_json_has_the_rendered_objects(forebay: Call, files: Path) -> None:
    facts = json.loads(forebay("fleet", "explain", files / "job.toml", "--fleet", files / "fleet.toml", "--json").out)
    prepare, train = facts["tasks"]
    assert prepare["ray_job"]["spec"]["entrypoint"] == "python prepare.py"
    assert train["ray_job"]["kind"] == "RayJob"
    assert [choice["market"] for choice in train["choices"]] == ["spot", "on-demand"]


@pytest.mark.parametrize(
    ("good", "wrong", "fault"),
    [
        ("epochs = 3", "epocs = 3", "Did you mean 'epochs'?"),
        ("gpus = 1", "gpu = 1", "line 11: task[1].workers.gpu"),
        ("gpus = 1", 'gpus = 1, sku = ["b200"]', "the fleet has no SKU 'b200'"),
    ],
)
def test_a_wrong_job_is_refused_without_a_request(
    forebay: Call, files: Path, good: str, wrong: str, fault: str
) -> None:
    (files / "job.toml").write_text(JOB.replace(good, wrong))
    said = forebay("fleet", "explain", files / "job.toml", "--fleet", files / "fleet.toml")
    assert said.code == 3 and fault in said.err
