"""Examinations that end early, or are cut off in a call that does not end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations
from torch import nn

import forebay as fb
from forebay.doctor.diagnose import ExaminationOptions, ExaminationRun, ExaminedRank, diagnose
from forebay.doctor.findings.bottleneck import verdict_of
from forebay.errors import BadJob
from forebay.runtime.foreign_code import OutcomeThread
from forebay.world import World

REACHED, RELEASED = threading.Event(), threading.Event()


def hang() -> None:
    REACHED.set()
    RELEASED.wait(60)


class HangingFiles(LocalFileSystem):
    """Local files that nothing is read from."""

    protocol = "hanging"
    cachable = False
    hangs = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if HangingFiles.hangs:
            hang()
        return super()._open(path, mode, **options)


def stopped_in_a_round(worker: fb.Worker, stage: list[str]) -> None:
    """Train until blocks are made beside it, and be interrupted then."""
    model, optimizer = worker.setup(nn.Linear(1, 1), partial(torch.optim.SGD, lr=0.01))
    for batch in worker.loader():
        worker.backward(batch, lambda part: model(part["x"]).mean()).detach()
        optimizer.step()
        worker.commit()
        if "source" in stage[-1]:
            raise KeyboardInterrupt


def test_an_interrupted_examination_leaves_nothing(tmp_path: Path, parquet_folder: Callable[..., Path]) -> None:
    folder = parquet_folder({"a.parquet": [40, 30]})
    transform = fb.Transform(x=fb.Dense(["x1"]))
    texts = [""]
    job = fb.Job(
        train=partial(stopped_in_a_round, stage=texts),
        data=fb.Data(plan=fb.build_plan(fb.scan(folder)), transform=transform, global_batch=16),
        cache=fb.CacheSpec(path=str(tmp_path / "cache"), min_free_bytes=0),
        storage=str(tmp_path / "runs"),
    )
    options = ExaminationOptions(seconds=6, progress=lambda done, total, text: texts.append(text))
    with pytest.raises(KeyboardInterrupt):
        diagnose(job, options)
    assert [path for path in tmp_path.iterdir() if path != folder] == []


def plain(batch: Any) -> dict[str, Any]:
    return {"x": batch.column("x1").to_numpy()[:, None]}


def hanging(batch: Any) -> dict[str, Any]:
    hang()
    return plain(batch)


def trained(worker: fb.Worker, hangs_at: str = "") -> None:
    """Train, and hang before the first batch or in a step."""
    model, optimizer = worker.setup(nn.Linear(1, 1), partial(torch.optim.SGD, lr=0.01))
    if hangs_at == "set up":
        hang()
    for batch in worker.loader():
        worker.backward(batch, lambda part: model(part["x"].float()).mean()).detach()
        optimizer.step()
        if hangs_at == "step":
            hang()
        worker.commit()


def job_of(folder: Path | str, tmp_path: Path, *, fn: Callable[..., Any] = plain, hangs_at: str = "") -> fb.Job:
    plan = fb.build_plan(fb.scan(folder))
    return fb.Job(
        train=partial(trained, hangs_at=hangs_at),
        data=fb.Data(plan=plan, transform=fb.Transform(fn=fn, version="1"), global_batch=16),
        cache=fb.CacheSpec(path=str(tmp_path / "cache"), min_free_bytes=0),
        storage=str(tmp_path / "runs"),
    )


@pytest.fixture
def cut_off(tmp_path: Path) -> Callable[[fb.Job], ExaminationRun]:
    """A run whose time ends as soon as a call hangs. No test waits for a clock."""

    def run(job: fb.Job) -> ExaminationRun:
        REACHED.clear()
        RELEASED.clear()
        rank = ExaminedRank(folder=tmp_path, world=World(), device=torch.device("cpu"))
        made = ExaminationRun(job, ExaminationOptions(seconds=600), rank)
        thread = OutcomeThread(made.examine, "examined")
        thread.start()
        assert REACHED.wait(60), thread.error
        made.deadline.end()
        return made

    return run


@pytest.mark.parametrize(
    ("planted", "name", "during"),
    [
        ({"fn": hanging}, "transform", "making the first blocks"),
        ({"hangs_at": "step"}, "compute", "a step of the train function"),
    ],
)
def test_a_call_that_does_not_end_is_named(
    cut_off: Callable[[fb.Job], ExaminationRun],
    tmp_path: Path,
    parquet_folder: Callable[..., Path],
    planted: dict[str, Any],
    name: str,
    during: str,
) -> None:
    run = cut_off(job_of(parquet_folder({"a.parquet": [40, 30]}), tmp_path, **planted))
    try:
        threading.Event().wait(0.1)  # longer than all else has taken
        measured = run.measurements()
    finally:
        RELEASED.set()
    assert verdict_of(measured).bottleneck.name == name
    assert run._found.activity == during and measured.cut_off is not None


def test_a_source_that_does_not_answer_is_named(
    cut_off: Callable[[fb.Job], ExaminationRun],
    tmp_path: Path,
    parquet_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(known_implementations, "hanging", {"class": f"{HangingFiles.__module__}.HangingFiles"})
    job = job_of(f"hanging://{parquet_folder({'a.parquet': [40, 30]})}", tmp_path)
    monkeypatch.setattr(HangingFiles, "hangs", True)
    run = cut_off(job)
    try:
        threading.Event().wait(0.1)
        measured = run.measurements()
    finally:
        RELEASED.set()
    assert verdict_of(measured).bottleneck.name == "network"
    assert run._found.activity == "reading the first row groups" and measured.cut_off is not None


def test_a_train_function_that_draws_no_batch_in_its_time_has_no_bottleneck(
    cut_off: Callable[[fb.Job], ExaminationRun], tmp_path: Path, parquet_folder: Callable[..., Path]
) -> None:
    run = cut_off(job_of(parquet_folder({"a.parquet": [40, 30]}), tmp_path, hangs_at="set up"))
    try:
        with pytest.raises(BadJob, match=r"during the train function, before its first batch.*--seconds 6000"):
            run.measurements()
    finally:
        RELEASED.set()


def test_an_examination_ends_beside_a_transform_that_does_not(
    tmp_path: Path, parquet_folder: Callable[..., Path]
) -> None:
    RELEASED.clear()
    folder = parquet_folder({"a.parquet": [40, 30]})
    with fb.Loader(job_of(folder, tmp_path).data) as loader:
        next(iter(loader))  # kernels are compiled
    try:
        found = diagnose(job_of(folder, tmp_path, fn=hanging), ExaminationOptions(seconds=2))
    finally:
        RELEASED.set()
    assert found.measurements.cut_off is not None
