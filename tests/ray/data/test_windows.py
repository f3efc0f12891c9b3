"""A sweep over window lengths reads each row group once in all, statistics included: counted by the server."""

from __future__ import annotations

import importlib
import pickle
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from torch import nn

import forebay as fb
from forebay.training.runs.result import load_result

STEPS, AHEAD, LENGTHS = 1500, 24, (96, 192, 336, 512)


def job(source: str, cache: str, steps: int, storage: str = "runs") -> fb.Job:
    spec = fb.CacheSpec(path=cache, quota_bytes=64 << 20, min_free_bytes=0)
    series = fb.Sequences(
        fb.scan(source),
        entity="meter",
        time="hour",
        past=fb.History(["load"], steps=steps),
        future=fb.Horizon(["load"], steps=AHEAD),
        stride=24,
        scale="standard",
        cache=spec,
    )
    training, held_out = series.split(fractions=(0.6,))
    return fb.Job(
        train=partial(train, steps=steps),
        data=fb.Data(plan=fb.build_plan(training, lanes=4), transform=training.transform, global_batch=16),
        held_out=fb.Data(plan=fb.build_plan(held_out, lanes=4), transform=held_out.transform, global_batch=16),
        epochs=3,
        cache=spec,
        storage=storage,
    )


def train(worker: fb.Worker, steps: int) -> None:
    net, optimizer = worker.setup(Forecast(steps), partial(torch.optim.SGD, lr=1e-3))
    for batch in worker.loader():
        error = worker.backward(batch, lambda each: nn.functional.mse_loss(net(each), each["future"][:, :, 0]))
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=error)


class Forecast(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.layer = nn.Linear(steps, AHEAD)

    def forward(self, batch: fb.Batch) -> torch.Tensor:
        found: torch.Tensor = self.layer(batch["past"][:, :, 0])
        return found


@pytest.fixture
def meters(tmp_path: Path) -> Path:
    """Three meters, each in one file of three row groups."""
    folder = tmp_path / "served" / "meters"
    folder.mkdir(parents=True)
    for meter in range(3):
        load = np.sin(np.arange(STEPS) / 24).astype(np.float32) + meter
        table = pa.table({"meter": np.full(STEPS, meter), "hour": np.arange(STEPS), "load": load})
        pq.write_table(table, folder / f"{meter}.parquet", row_group_size=STEPS // 3, compression="none")
    return folder


@pytest.mark.variation  # a minute; the laws of sequences count the same without Ray
@pytest.mark.usefixtures("ray_session")
def test_each_row_group_is_read_once_for_all_lengths(meters: Path, tmp_path: Path) -> None:
    """1.5.3: four trials of three epochs, statistics included."""
    source_of, counts_of = (importlib.import_module(f"bench.sweep.{name}") for name in ("source", "counts"))
    with source_of.serving(meters.parent) as source:
        options = f"endpoint_override={source.endpoint}&scheme=http&region=us-east-1&anonymous=true"
        fixed = {"source": f"s3://bucket/meters?{options}", "cache": str(tmp_path / "cache")}
        space: dict[str, Any] = {"steps": {"grid_search": list(LENGTHS)}}
        sweep = fb.Sweep(
            job,
            space,
            "loss",
            "min",
            num_trials=len(LENGTHS),
            fixed=fixed,
            driver="local",
            name="lengths",
            storage=str(tmp_path / "runs"),
        )
        found = fb.run_sweep(sweep, show=False)
        ranges = source.counts().ranges
    assert len(found.table) == len(LENGTHS)
    begun = Counter((place.path, place.start) for place, times in ranges.items() for _ in range(times))
    reads = [begun[group.path, group.start] for group in counts_of.row_groups(meters)]
    assert len(reads) == 9 and min(reads) == 1
    # The client may repeat a request that was not answered for some seconds.
    assert sum(reads) <= len(reads) + 1
    results = [load_result(str(path.parent)) for path in (tmp_path / "runs").rglob("result.json")]
    means = {result.statistics["columns"]["load"]["mean"] for result in results if result}
    assert len(results) == len(LENGTHS) and len(means) == 1


@ray.remote(num_cpus=1)
def batches_of(loader: fb.Loader) -> list[bytes]:
    with loader:
        return [batch["past"].tobytes() + batch.windows.tobytes() for batch in loader]


@pytest.mark.usefixtures("ray_session")
def test_a_ray_worker_reads_the_same_batches(meters: Path, tmp_path: Path) -> None:
    """1.5.10, with a pickle of at most 64 KiB and the index."""
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    past = fb.History(["load"], steps=96)
    series = fb.Sequences(fb.scan(str(meters)), entity="meter", time="hour", past=past, scale="standard", cache=cache)
    plan = fb.build_plan(series, seed=3)
    with fb.Loader(plan, series.transform, cache, global_batch=64, as_numpy=True) as loader:
        assert len(pickle.dumps(loader)) <= (64 << 10) + series.windows.nbytes
        found = ray.get(batches_of.remote(loader))
        assert found == [batch["past"].tobytes() + batch.windows.tobytes() for batch in loader]
