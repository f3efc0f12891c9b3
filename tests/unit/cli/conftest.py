"""The command as a user calls it, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forebay as fb
from forebay.cli.app import main

TRAINING = '''
"""A job for tests: one linear layer on two columns."""
from functools import partial
import torch
from torch import nn
import forebay as fb

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def forward(self, batch):
        return self.layer(batch["x"]).squeeze(1)

def train(worker, evaluate=None):
    fb.fit(worker, Model(), partial(torch.optim.SGD, lr=0.01), nn.BCEWithLogitsLoss(), evaluate)
'''
"""Model and train function of a job file. A test appends `job`."""

JOB = """
def job(data: str, cache: str, storage: str, label: str = "clicked", columns: list[str] = ["x1", "x2"],
        workers: int = 1, epochs: int = 2, lanes: int = 4, quota: int = 1 << 26, name: str = "small") -> fb.Job:
    transform = fb.Transform(x=fb.Dense(columns), label=fb.Label(label))
    plan = fb.build_plan(fb.scan(data), lanes=lanes)
    return fb.Job(train=train, data=fb.Data(plan=plan, transform=transform, global_batch=16), epochs=epochs,
                  workers=workers, cache=fb.CacheSpec(path=cache, quota_bytes=quota, min_free_bytes=0), storage=storage,
                  name=name)
"""


@dataclass(frozen=True)
class Said:
    """Outcome of one call of the command."""

    code: int
    out: str
    err: str


@pytest.fixture
def forebay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    # Some environments export it, and tests expect the width of a pipe.
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: object) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return Said(int(exit_.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def job_words(tmp_path: Path, parquet_folder: Callable[..., Path]) -> Callable[..., list[str]]:
    """Arguments of a job file and the parameters it needs.

    Keywords replace or add some.
    """
    path = tmp_path / "small_job.py"
    path.write_text(TRAINING + JOB)
    folder = parquet_folder({"a.parquet": [40, 30], "b.parquet": [30]})

    def words(**parameters: Any) -> list[str]:
        given = {"data": folder, "cache": tmp_path / "cache", "storage": tmp_path / "runs"} | parameters
        return [str(path), *(f"{name}={value}" for name, value in given.items())]

    return words


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
    """Folder of a run on windows of 4 steps.

    Windows of interleaved series, and windows of all rows in the order of the file.
    """
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
