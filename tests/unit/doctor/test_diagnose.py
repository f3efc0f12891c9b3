"""Examinations that end early."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import forebay as fb
from forebay.doctor.diagnose import ExaminationOptions, diagnose


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
    options = ExaminationOptions(seconds=1, progress=lambda done, total, text: texts.append(text))
    with pytest.raises(KeyboardInterrupt):
        diagnose(job, options)
    assert [path for path in tmp_path.iterdir() if path != folder] == []
