"""Data that no test reads, and options that make a job of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.training.job.job import Job
from forebay.training.worker.worker import Worker


@pytest.fixture
def data(parquet_folder: Callable[..., Path]) -> Data:
    """24 rows in 4 lanes, with batches of 8."""
    plan = build_plan(scan(parquet_folder({"a.parquet": [12, 12]})), seed=0, lanes=4)
    transform = Transform(x=Dense(["x0", "x1"]), label=Label("clicked"))
    return Data(plan=plan, transform=transform, global_batch=8)


def train(worker: Worker) -> None:
    """Never called."""


@pytest.fixture
def make_job(data: Data, tmp_path: Path) -> Callable[..., Job]:
    """`make(**options) -> Job` with its storage in the test's own folder."""
    own = {
        "train": train,
        "data": data,
        "cache": CacheSpec(path=str(tmp_path / "cache"), quota_bytes=1 << 30, min_free_bytes=0),
        "storage": str(tmp_path / "runs"),
    }

    def make(**options: Any) -> Job:
        return Job(**(own | options))

    return make
