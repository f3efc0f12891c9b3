"""A run has its folder to itself while its process lives."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.data.plan.plan import build_plan
from forebay.errors import CursorMismatch, InvalidOption
from forebay.testing.drivers.bench import DriverBench
from forebay.training.driver.driver import run
from forebay.training.runs import run_folder
from forebay.training.runs.run import Run
from forebay.training.runs.run_folder import acquire_new_run_folder, acquire_run_folder
from forebay.training.worker.worker import Worker

HOLD = """
import sys
from forebay.training.runs.run_folder import acquire_run_folder
held = acquire_run_folder(sys.argv[1], "a")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "WAIT_S", 0.05)


def test_folder_is_refused_until_it_is_released(tmp_path: Path) -> None:
    first = acquire_run_folder(str(tmp_path), "a")
    with pytest.raises(InvalidOption, match=r"a run named 'a' is under way in .*Wait for its end, or give"):
        acquire_run_folder(str(tmp_path), "a")
    acquire_run_folder(str(tmp_path), "b").release()
    first.release()
    second = acquire_run_folder(str(tmp_path), "a")
    first.release()
    with pytest.raises(InvalidOption, match="under way"):
        acquire_run_folder(str(tmp_path), "a")
    second.release()
    assert list((tmp_path / "a").iterdir()) == []


def test_folder_is_released_when_its_process_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InvalidOption, match="under way"):
            acquire_run_folder(str(tmp_path), "a")
        other.kill()
    acquire_run_folder(str(tmp_path), "a").release()


def test_names_made_at_one_time_differ(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: acquire_new_run_folder(str(tmp_path), "train-20260101"), range(24)))
    assert len({each.name for each in folders}) == 24
    assert {"train-20260101", "train-20260101-24"} <= {each.name for each in folders}
    for each in folders:
        each.release()


def test_storage_without_locks() -> None:
    assert acquire_run_folder("memory://folders", "a") == acquire_run_folder("memory://folders", "a")
    assert acquire_new_run_folder("memory://folders", "b").uri == "memory://folders/b"


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(InvalidOption, match="'a' names .* is a file"):
        acquire_run_folder(str(tmp_path), "a")
    (tmp_path / "b" / ".running").mkdir(parents=True)
    with pytest.raises(InvalidOption, match="folder .*b of run 'b' cannot be written"):
        acquire_run_folder(str(tmp_path), "b")


def test_run_of_a_name_that_is_under_way_is_refused(tmp_path: Path) -> None:
    bench = DriverBench(tmp_path)
    refused: list[InvalidOption] = []

    def train(worker: Worker) -> None:
        with pytest.raises(InvalidOption, match="'cc' is under way") as refusal:
            run(bench.job("cc"), "local")
        refused.append(refusal.value)
        bench.job("cc").train(worker)

    assert run(bench.job("cc", train=train), "local").is_finished
    assert len(refused) == 1
    assert run(bench.job("cc"), "local").is_finished
    assert not list((tmp_path / "runs").rglob(".running"))


def test_two_nameless_runs_before_either_saves(tmp_path: Path) -> None:
    nameless = replace(DriverBench(tmp_path).job("x"), name=None)
    with Run(nameless) as first, Run(nameless) as second:
        assert first.path != second.path


def test_run_that_cannot_begin_lets_go(tmp_path: Path) -> None:
    job = DriverBench(tmp_path).job("a", epochs=1)
    run(job, "local")
    other = replace(job, data=replace(job.data, plan=build_plan(job.data.plan.manifest, seed=4, lanes=4)))
    for _ in range(2):
        with pytest.raises(CursorMismatch):
            run(other, "local")
    assert run(job, "local").is_finished
