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
        loss = model(batch["x"]).square().mean()
        worker.backward(batch, lambda part: model(part["x"]).square().mean())
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
