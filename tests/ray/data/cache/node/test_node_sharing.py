"""Jobs and trials of one node, each a process with its own loader, share blocks and read each block once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from tests.ray.data.cache.node.cluster import kill_cache_actors

from forebay.data.cache.block_key import BlockNames
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.node.client import attach
from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.loader import Loader
from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.runtime.metrics import Counters

TRANSFORM = Transform(id=Dense("id", dtype="float64"))
COUNTED = ("hits", "stores", "bypasses", "peer_hits", "parquet_opens")


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[CacheSpec]:
    """A cache for this test only. Its actor ends with the test."""
    yield CacheSpec(path=str(tmp_path / "cache"), quota_bytes=16 << 20, min_free_bytes=0)
    kill_cache_actors()


def lock_of(manifest: Manifest, spec: CacheSpec) -> Path:
    return CacheDirectory(Path(spec.path)).use_lock(BlockNames(Dataset(manifest, TRANSFORM)).dataset)


def read_epochs(plan: Plan, spec: CacheSpec, num_epochs: int) -> tuple[list[list[int]], dict[str, float]]:
    """Ids of each epoch in order of arrival, and the counters."""
    counters = Counters()
    with Loader(plan, TRANSFORM, attach(spec), global_batch=64, as_numpy=True, counters=counters) as loader:
        epochs = [[int(row) for batch in loader for row in np.asarray(batch["id"]).ravel()] for _ in range(num_epochs)]
    return epochs, {name: counters[name] for name in COUNTED}


@pytest.mark.variation
@pytest.mark.usefixtures("ray_session")
def test_two_jobs_and_four_trials_read_the_source_once(parquet_folder: Callable[..., Path], spec: CacheSpec) -> None:
    manifest = scan(parquet_folder({"a.parquet": [100] * 7, "b.parquet": [50] * 6}))
    job, other_job = (build_plan(manifest, seed=seed, lanes=4) for seed in (1, 2))
    # The jobs read the data twice at the same time, each in its own order. The trials are four copies of the first job.
    users = [(job, 2), (other_job, 2), *[(job, 1)] * 4]
    read = ray.remote(num_cpus=1)(read_epochs)
    replies = ray.get([read.remote(plan, spec, num_epochs) for plan, num_epochs in users], timeout=300)
    for epochs, counted in replies:
        assert all(sorted(ids) == list(range(manifest.num_rows)) for ids in epochs)
        assert counted["bypasses"] == counted["peer_hits"] == 0
    assert sum(counted["parquet_opens"] for _, counted in replies) == len(manifest)
    assert sum(counted["stores"] for _, counted in replies) == len(manifest)
    first_epochs = [epochs[0] for epochs, _ in replies]
    assert all(ids == first_epochs[0] for ids in first_epochs[2:]) and first_epochs[0] != first_epochs[1]


@pytest.mark.usefixtures("ray_session")
def test_data_set_of_a_running_job_is_not_evicted_by_the_next_job(
    parquet_folder: Callable[..., Path], spec: CacheSpec
) -> None:
    found = (scan(parquet_folder({"a.parquet": [20_000] * 3}, folder=name)) for name in "abcde")
    old = next(found)
    # Datasets that share a lock are in use together.
    new = next(other for other in found if lock_of(other, spec) != lock_of(old, spec))
    first, second = (build_plan(manifest, lanes=4) for manifest in (old, new))
    read_epochs(first, spec, 1)
    full = CacheSpec(path=spec.path, quota_bytes=attach(spec).facts()["used_bytes"] + 100_000, min_free_bytes=0)
    with Loader(first, TRANSFORM, attach(full), global_batch=64) as running:
        batches = iter(running)
        next(batches)
        _, counted = ray.get(ray.remote(num_cpus=1)(read_epochs).remote(second, full, 1), timeout=300)
        assert counted["bypasses"] == counted["parquet_opens"] > 0 and counted["stores"] == 0
    _, counted = ray.get(ray.remote(num_cpus=1)(read_epochs).remote(second, full, 1), timeout=300)
    assert counted["stores"] == 3 and counted["bypasses"] == 0
    assert [use.dataset for use in full.open().datasets()] == [BlockNames(Dataset(new, TRANSFORM)).dataset]
