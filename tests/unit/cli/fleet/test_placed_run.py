"""A run that a fleet has placed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.cli.fleet.placed_run import PlacedRun
from forebay.errors import InvalidOption
from forebay.training.runs import storage_check
from forebay.training.runs.timeline.cost import MACHINE, PRICE, PRICE_ON_DEMAND


def test_the_first_act_of_a_placed_run_is_the_check(
    forebay: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(storage_check, "WITHIN_S", 0.0)
    monkeypatch.setenv("FOREBAY_RUN_STORAGE", str(tmp_path / "file" / "runs"))
    monkeypatch.setenv("FOREBAY_RUN_ATTEMPT", "1/token")
    # Its job file is not there either: that is found later.
    said = forebay("run", tmp_path / "nowhere.py", "--driver", "local")
    assert said.code == 78
    assert said.err.startswith("UnusableStorage: the storage")


@pytest.fixture
def make_job(parquet_folder: Callable[..., Path]) -> Callable[[fb.Resources], fb.Job]:
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [40]})), lanes=8)
    data = fb.Data(plan=plan, global_batch=8, transform=fb.Transform(x=fb.Dense(["x1"])))
    return lambda resources: fb.Job(train=print, data=data, epochs=1, resources=resources)


def test_a_placed_run_has_the_name_storage_and_workers_of_its_submitter(
    make_job: Callable[[fb.Resources], fb.Job],
) -> None:
    variables = {"NAME": "ctr", "STORAGE": "s3://lake/runs", "WORKERS": "2..4", "CPUS": "0.5", "GPUS": "1"}
    placed = PlacedRun.of({f"FOREBAY_RUN_{name}": value for name, value in variables.items()})
    job = placed.applied_to(make_job(fb.Resources(cpus=0.5, gpus=1)))
    assert isinstance(job, fb.Job)
    assert (job.name, job.storage, job.elastic) == ("ctr", "s3://lake/runs", fb.Elastic(min_workers=2, max_workers=4))
    priced = {"MACHINE": "west/h100/spot", "PRICE": "12.25", "PRICE_ON_DEMAND": "30"}
    told = {f"FOREBAY_RUN_{name}": value for name, value in priced.items()}
    placed_there = PlacedRun.of(told).applied_to(make_job(fb.Resources()))
    assert isinstance(placed_there, fb.Job)
    assert placed_there.parameters == {MACHINE: "west/h100/spot", PRICE: 12.25, PRICE_ON_DEMAND: 30.0}
    first = PlacedRun.of({"FOREBAY_RUN_WORKERS": "2..4", "FOREBAY_RUN_START": "2"}).applied_to(make_job(fb.Resources()))
    assert isinstance(first, fb.Job) and first.elastic == fb.Elastic(min_workers=2, max_workers=4, start=2)
    with pytest.raises(InvalidOption, match="FOREBAY_RUN_START='two' is not a number"):
        PlacedRun.of({"FOREBAY_RUN_START": "two"})


@pytest.mark.parametrize(
    ("task", "asked", "gets"),
    [("0", None, 0), ("1", None, 1), ("8", None, 8), ("8", 1, 1), ("8", 0, 0), (None, None, None), (None, 1, 1)],
)
def test_a_job_gets_the_gpus_of_its_task_unless_it_names_its_own(
    make_job: Callable[[fb.Resources], fb.Job], task: str | None, asked: float | None, gets: float | None
) -> None:
    placed = PlacedRun.of({} if task is None else {"FOREBAY_RUN_GPUS": task})
    job = placed.applied_to(make_job(fb.Resources(gpus=asked)))
    assert isinstance(job, fb.Job)
    assert job.resources == fb.Resources(gpus=gets)


@pytest.mark.parametrize(
    ("cpus", "gpus", "fault"),
    [
        (2, 0, "needs 2 cpu, and a worker of the task has 0.5. Set workers.cpu"),
        (0.5, 1, "needs 1 gpus, and a worker of the task has 0. Set workers.gpus"),
    ],
)
def test_a_job_that_needs_more_than_a_worker_of_its_task_has_is_refused(
    make_job: Callable[[fb.Resources], fb.Job], cpus: float, gpus: float, fault: str
) -> None:
    placed = PlacedRun.of({"FOREBAY_RUN_CPUS": "0.5", "FOREBAY_RUN_GPUS": "0"})
    with pytest.raises(InvalidOption, match=fault):
        placed.applied_to(make_job(fb.Resources(cpus=cpus, gpus=gpus)))
