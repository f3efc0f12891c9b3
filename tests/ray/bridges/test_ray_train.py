"""Forebay's loader as the dataset of Ray Train."""

from __future__ import annotations

import gc
import json
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import forebay as fb
from forebay.data.transform.row_random import RowRandom
from forebay.errors import InvalidOption

PAGE = Path(__file__).parents[3] / "docs" / "own-loop.md"
STOP_AFTER = 5
GLOBAL_BATCH = 32


@pytest.fixture
def dataset(request: pytest.FixtureRequest, parquet_folder: Callable[..., Path]) -> fb.Dataset:
    """Rows as they are, or with the augment that is the fixture's parameter."""
    folder = parquet_folder({"a.parquet": [100, 60], "b.parquet": [40, 200]})
    return fb.Dataset(
        fb.scan(str(folder)), fb.Transform(id=fb.Label("id", dtype="int64")), getattr(request, "param", None)
    )


@pytest.fixture
def restored_sigint(ray_session: None) -> Iterator[None]:
    """Ray Train's handler of Ctrl-C stays after a fit, and keeps its controller alive."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
    gc.collect()


def add_thousands(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    return {"id": batch["id"] + 1000 * rng.integers(1, 1000)}


def configured(dataset: fb.Dataset, size: int) -> list[Any]:
    """Shards as the workers get them: pickled by Ray."""
    config = fb.bridges.ray_train.DataConfig(global_batch=GLOBAL_BATCH, seed=7)
    found = config.configure({"train": dataset}, size, worker_handles=None, worker_node_ids=None)
    return [cloudpickle.loads(cloudpickle.dumps(shards["train"])) for shards in found]


def joined(parts: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(row_id for part in batch for row_id in part) for batch in zip_longest(*parts)]


@pytest.fixture
def calm_ids(dataset: fb.Dataset) -> list[list[int]]:
    (shard,) = configured(dataset, 1)
    with shard.loader:
        return [sorted(batch["id"].tolist()) for _ in range(2) for batch in shard]


@pytest.mark.parametrize("dataset", [None, add_thousands], indirect=True)
def test_shards_go_on_in_another_world(dataset: fb.Dataset, calm_ids: list[list[int]]) -> None:
    assert (calm_ids[0][0] >= 1000) == (dataset.augment is not None)
    parts, states = [], []
    for shard in configured(dataset, 2):
        with shard.loader:
            batches = shard.iter_torch_batches(batch_size=GLOBAL_BATCH // 2)
            parts.append([next(batches)["id"].tolist() for _ in range(STOP_AFTER)])
            states.append(shard.state_dict())
    assert joined(parts) == calm_ids[:STOP_AFTER] and states[0] == states[1]
    rest = []
    for shard in configured(dataset, 4):
        shard.load_state_dict(states[0])
        with shard.loader:
            rest.append([batch["id"].tolist() for batch in shard])
    assert joined(rest) == calm_ids[STOP_AFTER : len(calm_ids) // 2]


def test_what_cannot_work_is_refused(dataset: fb.Dataset) -> None:
    with pytest.raises(InvalidOption, match=r"fb.build_plan\(..., lanes=18\)"):
        configured(dataset, 3)
    with pytest.raises(InvalidOption, match=r"give fb.Dataset\(manifest, transform\)"):
        configured("folder", 1)  # type: ignore[arg-type]
    (shard, _) = configured(dataset, 2)
    with pytest.raises(InvalidOption, match="gives each of 2 workers 16 rows"):
        shard.iter_torch_batches(batch_size=32)


def train(config: dict[str, Any]) -> None:
    shard, context = ray.train.get_dataset_shard("train"), ray.train.get_context()
    if config["checkpoint"]:
        with config["checkpoint"].as_directory() as folder:
            shard.load_state_dict(json.loads((Path(folder) / "cursor.json").read_text()))
    ids: list[list[int]] = []
    for batch in shard:
        ids.append(batch["id"].tolist())
        if len(ids) == config["stop_after"]:
            break
    name = f"{context.get_world_size()}-{context.get_world_rank()}.json"
    (Path(config["folder"]) / name).write_text(json.dumps(ids))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cursor.json").write_text(json.dumps(shard.state_dict()))
        ray.train.report({}, checkpoint=Checkpoint(folder) if context.get_world_rank() == 0 else None)


@pytest.mark.variation("shards go on in another world also without Ray Train's processes")
def test_a_trainer_goes_on_with_other_workers(
    restored_sigint: None, dataset: fb.Dataset, calm_ids: list[list[int]], tmp_path: Path
) -> None:
    config = fb.bridges.ray_train.DataConfig(
        global_batch=GLOBAL_BATCH, seed=7, cache=fb.CacheSpec(path=str(tmp_path / "cache"), quota_bytes=64 << 20)
    )
    found: list[list[list[int]]] = []
    checkpoint = None
    for size, stop_after in ((2, STOP_AFTER), (1, 0)):
        trainer = TorchTrainer(
            train,
            train_loop_config={"folder": str(tmp_path), "stop_after": stop_after, "checkpoint": checkpoint},
            scaling_config=ScalingConfig(num_workers=size),
            run_config=RunConfig(storage_path=str(tmp_path / "runs"), name=f"of-{size}"),
            datasets={"train": dataset},  # type: ignore[dict-item]
            dataset_config=config,
        )
        checkpoint = trainer.fit().checkpoint
        found.append(joined([json.loads((tmp_path / f"{size}-{rank}.json").read_text()) for rank in range(size)]))
    assert found == [calm_ids[:STOP_AFTER], calm_ids[STOP_AFTER : len(calm_ids) // 2]]


@pytest.mark.variation("the example of the page, with two workers")
def test_the_example_of_the_page_trains(
    restored_sigint: None, parquet_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet_folder({"a.parquet": [100, 60], "b.parquet": [40, 200]}, folder="clicks")
    clicks, _, example, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shared: dict[str, Any] = {}
    exec(clicks, shared)
    monkeypatch.setitem(sys.modules, "clicks", SimpleNamespace(**shared))  # type: ignore[arg-type]
    exec(example.replace('path="cache"', f'path="{tmp_path}/cache"'), {"__name__": "__main__"})
