"""The time of copying batches to a device is counted for the loader of those batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from forebay.data.loader.data import Data
from forebay.data.loader.worker_loaders import WorkerLoaders
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.runtime.metrics import Counters
from forebay.world import World

DEVICES = ["meta", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture
def data(parquet_folder: Callable[..., Path]) -> Data:
    transform = Transform(x=Dense(["x0", "x1"]), label=Label("clicked"))
    return Data(
        plan=build_plan(scan(parquet_folder({"a.parquet": [40, 24]})), lanes=4), transform=transform, global_batch=16
    )


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_timed(data: Data, device: str) -> None:
    counters = Counters()
    with closing(WorkerLoaders(World(), torch.device(device), None)) as feed:
        batches = list(feed.one_epoch(data, counters))
    assert [batch["x"].device.type for batch in batches] == [device] * 4
    assert 0 < counters["copy_s"] < 60
    assert batches[-1].ends_epoch


def test_where_nothing_is_copied_nothing_is_counted(data: Data) -> None:
    counters = Counters()
    with closing(WorkerLoaders(World(), torch.device("cpu"), None)) as feed:
        assert len(list(feed.one_epoch(data, counters))) == 4
    assert "copy_s" not in counters.as_dict()
