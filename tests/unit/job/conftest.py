"""Data that no test reads, and options that make a job of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.cache.spec import CacheSpec
from forebay.job.job import Job
from forebay.loader.data import Data
from forebay.manifest.scan import scan
from forebay.plan.plan import build_plan
from forebay.train.worker import Worker
from forebay.transform.features.groups import Dense, Label
from forebay.transform.transform import Transform


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
