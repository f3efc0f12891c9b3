"""Trials of one node share its blocks: each row group leaves its source and is transformed once, for all trials.

The source is the counting S3 server of the sweep bench, so the reads are counted by the server.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import forebay as fb

NUM_TRIALS, NUM_EPOCHS = 3, 2
ROW_GROUPS = [300, 200, 100]


def job(source: str, cache: str, log: str, lr: float = 0.1, scale: float = 1.0) -> fb.Job:
    """`lr` belongs to the model alone, `scale` is part of the transform."""
    return fb.Job(
        train=partial(train, lr=lr),
        data=fb.Data(
            plan=fb.build_plan(fb.scan(source, columns=["id", "x1", "clicked"]), lanes=4),
            transform=fb.Transform(fn=partial(arrays, log=log, scale=scale), version="1"),
            global_batch=64,
        ),
        epochs=NUM_EPOCHS,
        cache=fb.CacheSpec(path=cache, quota_bytes=64 << 20, min_free_bytes=0),
    )


def arrays(batch: pa.RecordBatch, log: str, scale: float) -> dict[str, np.ndarray]:
    """Log the ids of the rows that are transformed."""
    numbers = batch["id"].to_numpy()
    line = json.dumps({"spans": [[int(numbers[0]), int(numbers[-1]) + 1]]})
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)
    x = batch["x1"].to_numpy(zero_copy_only=False).astype(np.float32)
    label = batch["clicked"].to_numpy(zero_copy_only=False).astype(np.float32)
    return {"x": scale * np.nan_to_num(x)[:, None], "label": label}


def train(worker: fb.Worker, lr: float) -> None:
    fb.fit(worker, SharingLine(), partial(torch.optim.SGD, lr=lr), nn.BCEWithLogitsLoss())


class SharingLine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: fb.Batch) -> torch.Tensor:
        logits: torch.Tensor = self.layer(batch["x"]).flatten()
        return logits


@pytest.fixture
def bench() -> Callable[[str], ModuleType]:
    """`bench("sweep.source")` is the module `bench.sweep.source`."""
    return lambda name: importlib.import_module(f"bench.{name}")


@pytest.fixture
def sweep(
    bench: Callable[[str], ModuleType], parquet_folder: Callable[..., Path], tmp_path: Path
) -> Callable[..., tuple[Any, set[str]]]:
    """Run a sweep over a space: its `sweep_counts.SourceCounters` (sent, transformed) and the cache's datasets."""
    source_of, counts_of, notes = bench("sweep.source"), bench("sweep.counts"), bench("notes")
    folder = parquet_folder({"a.parquet": ROW_GROUPS, "b.parquet": ROW_GROUPS[::-1]}, folder="clicks")
    cache, log = tmp_path / "cache", tmp_path / "transforms.jsonl"

    def run(space: dict[str, Any], driver: str) -> tuple[Any, set[str]]:
        with source_of.serving(folder.parent) as source:
            options = f"endpoint_override={source.endpoint}&scheme=http&region=us-east-1&anonymous=true"
            found = fb.run_sweep(
                fb.Sweep(
                    job,
                    space,
                    "loss",
                    "min",
                    num_trials=NUM_TRIALS,
                    fixed={"source": f"s3://bucket/clicks?{options}", "cache": str(cache), "log": str(log)},
                    driver=driver,
                    name="sharing",
                    storage=str(tmp_path / "runs"),
                ),
                show=False,
            )
            assert len(found.table) == NUM_TRIALS
            assert re.search(
                r"2 trials share the blocks clicks-\S+; 1 shares nothing, with a transform", found._repr_html_()
            )
            counts = source.counts()
        counters = counts_of.counters(counts_of.row_groups(folder), counts, notes.read_notes(str(log)))
        return counters, {use.dataset for use in fb.DiskCache(cache, quota_bytes=64 << 20).datasets()}

    return run


@pytest.mark.usefixtures("ray_session")
def test_trials_of_one_transform_read_once_and_others_share_nothing_with_them(
    sweep: Callable[..., tuple[Any, set[str]]],
) -> None:
    counted, datasets = sweep({"scale": {"grid_search": [1.0, 1.0, 2.0]}}, "local")
    # Two trials share one transform, and the third has its own: each group is read twice, not three times.
    # The client may repeat a request that was not answered for some seconds.
    assert counted.read[0] == 2 and counted.read[1] <= 3
    assert counted.transformed == (2.0, 2.0)
    assert {name.partition("-")[0] for name in datasets} == {"clicks"}
    assert len(datasets) == 2
