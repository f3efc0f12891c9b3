"""Statistics in checkpoints: saved with the run, and a resume on values of other statistics is refused."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.windows.conftest import random_series, write_series

import forebay as fb
from forebay.errors import CursorMismatch
from forebay.training.checkpoint.checkpoint import Checkpoint
from forebay.training.runs.result import load_result, save_result
from forebay.training.runs.run import Run
from forebay.training.state.epoch_totals import EpochFacts
from forebay.training.state.snapshot import Snapshot

ROWS = fb.Transform(x=fb.Dense(["load"]))


def data_of(folder: Path, **options: Any) -> fb.Data:
    data = folder / "data"
    rng = np.random.default_rng(3)
    manifest = fb.scan(str(data)) if data.exists() else write_series(data, random_series(rng), "entity", rng)
    options = {"past": fb.History(["load"], steps=4), "scale": "standard"} | options
    part = fb.Sequences(manifest, entity="meter", time="ts", **options).split(fractions=(0.7,))[0]
    return fb.Data(plan=fb.build_plan(part), transform=part.transform, global_batch=8)


def saved(data: fb.Data) -> Checkpoint:
    snapshot = Snapshot(
        step=3, cursor=data.start, objects={}, rng=(), rows=0, facts=EpochFacts(), ended=(), statistics=data.statistics
    )
    return snapshot.to_checkpoint(fb.World())


def test_a_checkpoint_keeps_them(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    found = Snapshot.from_checkpoint(saved(data)).statistics
    assert found["columns"]["load"]["mean"] == pytest.approx(0, abs=0.5)
    assert (found["scale"], found["fill"]) == ("standard", "forward")
    data_of(tmp_path).validate_statistics(found, owner="the checkpoint of step 3")


@pytest.mark.parametrize("options", [{"scale": "minmax"}, {"fill": "both"}, {"scale": None, "fill": None}])
def test_others_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    found = Snapshot.from_checkpoint(saved(data_of(tmp_path))).statistics
    other = data_of(tmp_path, **options)
    assert other.plan.id == data_of(tmp_path).plan.id, "the order does not depend on them"
    with pytest.raises(CursorMismatch, match="step 3 was trained on values scaled or filled by other statistics"):
        other.validate_statistics(found, owner="the checkpoint of step 3")


def test_checkpoints_of_rows_hold_none(tmp_path: Path) -> None:
    data_of(tmp_path)
    plan = fb.build_plan(fb.scan(str(tmp_path / "data")))
    data = fb.Data(plan=plan, transform=fb.Transform(x=fb.Dense(["load"])), global_batch=8)
    (state,) = saved(data).shards.values()
    assert "statistics" not in state
    data.validate_statistics({}, owner="the checkpoint of step 3")


def job_of(folder: Path, **options: Any) -> fb.Job:
    return fb.Job(train=print, data=data_of(folder, **options), cache=None, storage=str(folder / "runs"), name="a")


def test_a_result_keeps_them_and_others_are_refused_before_workers_start(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with Run(job) as run:
        save_result(run.result)
    found = load_result(run.path)
    assert found is not None and found.statistics == job.data.statistics
    with Run(job) as again:
        assert again.result.statistics == job.data.statistics
    with pytest.raises(CursorMismatch, match="the run 'a' was trained on values scaled or filled by other statistics"):
        Run(job_of(tmp_path, scale="minmax"))


def test_values_that_are_not_finite_survive_the_file(tmp_path: Path) -> None:
    table = pa.table({"meter": [1] * 30, "ts": range(30), "load": pa.array([None] * 30, pa.float32())})
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "a.parquet")
    with Run(job_of(tmp_path)) as run:
        save_result(run.result)
    found = load_result(run.path)
    assert found is not None
    assert math.isnan(found.statistics["columns"]["load"]["mean"])


@pytest.mark.parametrize(
    ("shuffle_rows", "stride", "words"),
    [
        # A batch has 8 windows of 4 steps.
        (2, 1, "shuffles 2 neighbouring windows at a time. They cover 2 steps.*has 32: 0.1 batches.*shuffle_rows="),
        (3200, 1, None),
        (5000, 1, None),
        (2, 1600, None),
    ],
)
def test_a_shuffle_that_is_too_local_is_told_of_before_training(
    shuffle_rows: int, stride: int, words: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"ts": range(10_000), "load": np.arange(10_000, dtype=np.float32)})
    pq.write_table(table, tmp_path / "a.parquet")
    past = fb.History(["load"], steps=4)
    series = fb.Sequences(fb.scan(str(tmp_path / "a.parquet")), time="ts", past=past, stride=stride)
    plan = fb.build_plan(series, lanes=2, shuffle_rows=shuffle_rows)
    data = fb.Data(plan=plan, transform=series.transform, global_batch=8)
    with caplog.at_level(logging.WARNING), Run(fb.Job(train=print, data=data, cache=None, storage=str(tmp_path))):
        pass
    assert len(caplog.messages) == (words is not None)
    assert words is None or re.search(words, caplog.text)
    assert fb.Data(plan=fb.build_plan(fb.scan(str(tmp_path))), transform=ROWS, global_batch=8).shuffle_advice is None
