"""A run whose rows are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import forebay as fb


def train(worker: fb.Worker) -> None:
    model, optimizer = worker.setup(nn.Linear(2, 1), partial(torch.optim.SGD, lr=1e-3))
    for batch in worker.loader():
        name = "x" if "x" in batch else "past"
        loss = worker.backward(batch, lambda part, name=name: model(part[name]).square().mean())
        optimizer.step()
        worker.commit(loss=loss)


@pytest.fixture
def run(parquet_folder: Callable[..., Path], tmp_path: Path) -> str:
    """Folder of a run of two steps of 32 rows."""
    manifest = fb.scan(parquet_folder({"day=1/a.parquet": [40, 24]}))
    transform = fb.Transform(x=fb.Dense(["x1", "x2"]))
    data = fb.Data(plan=fb.build_plan(manifest, lanes=4), transform=transform, global_batch=32)
    fb.run(fb.Job(train=train, data=data, storage=str(tmp_path / "runs"), name="run"), driver="local")
    return str(tmp_path / "runs" / "run")


@pytest.fixture
def windows_run(parquet_folder: Callable[..., Path], tmp_path: Path) -> str:
    """Folder of a run on windows of 4 steps of interleaved series, and on such of all rows in the order of the file."""
    data = parquet_folder({"day=1/a.parquet": [40, 24]}, folder="series")
    parts = {
        name: fb.Sequences(fb.scan(data), past=fb.History(["x1", "x2"], steps=4), entity=entity, time="id").whole
        for name, entity in (("apart", "c0"), ("one", None))
    }
    plan = fb.Mixture({name: fb.build_plan(part, lanes=4) for name, part in parts.items()}, rows=64)
    transform = {name: part.transform for name, part in parts.items()}
    job = fb.Job(
        train=train,
        data=fb.Data(plan=plan, transform=transform, global_batch=16),
        storage=str(tmp_path / "runs"),
        name="windows",
    )
    fb.run(job, driver="local")
    return str(tmp_path / "runs" / "windows")
