"""Jobs that train in a second, can be disturbed at a step, and write down which rows shaped their model."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from forebay.cache.spec import CacheSpec
from forebay.driver.result import Result
from forebay.job.job import Job
from forebay.manifest.scan import scan
from forebay.plan.plan import build_plan
from forebay.train.commits import CommitDirectory
from forebay.train.data import Data
from forebay.train.worker import Worker
from forebay.transform.features import Dense, Label
from forebay.transform.transform import Transform

ROWS = 120
STEPS_PER_EPOCH = 8


class DriverBench:
    """`job(name)` makes jobs over the same 120 rows below `folder`; the other methods read what a run left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = Data(
            plan=build_plan(scan(_write_rows(folder / "data")), seed=3, lanes=4),
            transform=Transform(row=Dense("id"), inputs=Dense(["a", "b", "c"]), label=Label("target")),
            global_batch=16,
        )

    def job(self, name: str, *, at_step: int = -1, event: str = "", **options: Any) -> Job:
        """Two epochs with a commit every 3 steps. After step `at_step` the last rank meets `event`.

        Events: `raise` (a `ValueError`), `kill` (SIGKILL, once) and `kill always`.
        """
        log = self._folder / "rows" / name
        log.mkdir(parents=True, exist_ok=True)
        defaults: dict[str, Any] = {
            "train": partial(recording_train, log=str(log), at_step=at_step, event=event),
            "data": self._data,
            "epochs": 2,
            "cache": CacheSpec(path=str(self._folder / "cache"), quota_bytes=1 << 24, min_free_bytes=0),
            "storage": str(self._folder / "runs"),
            "commit_every": 3,
        }
        return Job(name=name, **(defaults | options))

    def rows(self, name: str) -> dict[str, list[int]]:
        """Ids of the rows that shaped the model, by `step-rank`; a step that was done again counts once."""
        return {path.name: json.loads(path.read_text()) for path in sorted((self._folder / "rows" / name).glob("0*"))}

    def happened_at(self, name: str) -> float:
        """Unix time of the event that met the job."""
        return (self._folder / "rows" / name / "happened").stat().st_mtime


def weights(result: Result) -> Mapping[str, torch.Tensor]:
    """The model in the newest commit of a run."""
    commit = CommitDirectory(f"{result.path}/commits").newest()
    assert commit is not None, f"{result.path} has no commit"
    state: Any = commit.state
    model: Mapping[str, torch.Tensor] = state["objects"]["model"]
    return model


def recording_train(worker: Worker, *, log: str, at_step: int, event: str) -> None:
    """Least squares, one file per step and rank with the rows it saw."""
    model, optimizer = worker.setup(nn.Linear(3, 1), partial(torch.optim.Adam, lr=0.01))
    for batch in worker.loader():
        loss = ((model(batch["inputs"])[:, 0] - batch["label"]) ** 2).mean() * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rows = [int(row) for row in batch["row"][:, 0]] if batch.weight else []
        Path(log, f"{worker.step:05}-{worker.world.rank}").write_text(json.dumps(rows))
        if worker.step == at_step and worker.world.rank == worker.world.size - 1:
            _happen(event, Path(log, "happened"))
        worker.commit(loss=loss)


def _happen(event: str, mark: Path) -> None:
    if event == "kill" and mark.exists():
        return
    mark.write_text(str(time.time()))
    if event == "raise":
        raise ValueError("boom in the train function")
    os.kill(os.getpid(), signal.SIGKILL)


def _write_rows(folder: Path) -> str:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    columns = {name: rng.standard_normal(ROWS, dtype=np.float32) for name in ("a", "b", "c", "target")}
    pq.write_table(pa.table({"id": np.arange(ROWS), **columns}), folder / "rows.parquet", row_group_size=28)
    return str(folder)
