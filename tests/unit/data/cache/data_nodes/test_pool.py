"""Blocks from data nodes, joined by plain calls instead of Ray: same blocks, and a lost node costs time only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.data.cache.data_nodes.pool import DataNodeLost, DataNodes
from forebay.data.cache.data_nodes.service import DataNodeService, SentBlock
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node.service import NodeService
from forebay.data.cache.node.source import NodeSource
from forebay.data.cache.requests import InMemoryBlock, Reply
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import ForebayError, TransformFailed
from forebay.runtime.metrics import Counters

TRANSFORM = Transform(id=Dense("id", dtype="float64"))
NUM_BLOCKS = 12
COUNTED = ("stores", "bypasses", "peer_hits", "parquet_opens", "data_node_blocks")


class DataLine:
    """Transport of plain calls to the services of data nodes. Records them."""

    def __init__(self) -> None:
        self.services: dict[str, DataNodeService[Block]] = {}
        self.lost: set[str] = set()
        self.is_listed = True
        self.calls: list[tuple[str, str]] = []
        self.spoil: Callable[[Block], Block] = lambda block: block

    def add(self, name: str) -> None:
        self.services[name] = DataNodeService(num_cores=2, send=lambda block: block)

    def cores(self, data_nodes: str) -> Mapping[str, float]:
        if not self.is_listed:
            raise DataNodeLost("no list")
        return {name: 2.0 for name in self.services if name.startswith(data_nodes)}

    def register(self, name: str, dataset_id: str, payload: bytes) -> ForebayError | None:
        self.calls.append((name, "register"))
        self.services[name].register(dataset_id, payload)
        return None

    def build(self, name: str, dataset_id: str, index: int) -> Reply:
        self.calls.append((name, "build"))
        if name in self.lost:
            raise DataNodeLost("it died")
        reply = self.services[name].request(dataset_id, index).result(60)
        if not isinstance(reply, SentBlock):
            return reply
        block = self.spoil(reply.sent)
        return InMemoryBlock(sums=reply.sums, rows=block.rows, arrays=block.arrays)


class PooledLine:
    """Transport of plain calls to the cache of a node that uses `data`."""

    is_here = True

    def __init__(self, spec: CacheSpec, data: DataLine) -> None:
        self.spec = spec
        self.pool = DataNodes(spec, data)
        self.service = NodeService(spec, data_nodes=self.pool)

    def disk(self) -> DiskCache:
        return self.spec.open()

    def call(self, cancelled: threading.Event, method: str, *arguments: Any) -> Any:
        if method == "register":
            return self.service.register(*arguments[:2])
        future = self.service.request(*arguments[:2])
        return "unknown" if future is None else future.result(60).next_reply()


@pytest.fixture
def data() -> Iterator[DataLine]:
    made = DataLine()
    made.add("data-1")
    made.add("data-2")
    yield made
    for service in made.services.values():
        service.close(5.0)


@pytest.fixture
def line(tmp_path: Path, data: DataLine) -> Iterator[PooledLine]:
    """Node whose cache knows its data nodes already."""
    spec = CacheSpec(path=str(tmp_path / "cache"), quota_bytes=16 << 20, min_free_bytes=0, data_nodes="data")
    made = PooledLine(spec, data)
    made.pool._look_up_when_stale()
    deadline = time.monotonic() + 60
    while data.is_listed and len(made.pool._dispatch._nodes) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    yield made
    made.service.close(5.0)


@pytest.fixture
def manifest(parquet_folder: Callable[..., Path]) -> Manifest:
    return scan(parquet_folder({"a.parquet": [5] * NUM_BLOCKS}))


def read(line: PooledLine, manifest: Manifest, transform: Transform = TRANSFORM) -> dict[str, float]:
    """Read all blocks, check their rows, and return the counters."""
    counters = Counters()
    with closing(NodeSource(line, Dataset(manifest, transform), counters)) as source:
        futures = [source.request(index) for index in range(len(manifest))]
        ids = np.concatenate([future.result(60).arrays["id"] for future in futures]).ravel().tolist()
    assert ids == list(range(manifest.num_rows))
    assert counters["stores"] + counters["bypasses"] == counters["peer_hits"] + counters["parquet_opens"] == NUM_BLOCKS
    return {name: counters[name] for name in COUNTED}


def test_data_nodes_build_blocks_that_the_node_stores(line: PooledLine, data: DataLine, manifest: Manifest) -> None:
    counted = read(line, manifest)
    assert counted["stores"] == NUM_BLOCKS
    assert 0 < counted["data_node_blocks"] <= NUM_BLOCKS
    assert {name for name, _ in data.calls} == {"data-1", "data-2"}
    assert all(service.counters["parquet_opens"] for service in data.services.values())


def test_without_data_nodes_all_is_built_here(line: PooledLine, data: DataLine, manifest: Manifest) -> None:
    line.service.apply_spec(CacheSpec(path=line.spec.path, quota_bytes=16 << 20, min_free_bytes=0))
    assert read(line, manifest)["data_node_blocks"] == 0
    assert data.calls == []


def test_other_data_nodes_may_be_chosen_later(line: PooledLine, data: DataLine, manifest: Manifest) -> None:
    spec = CacheSpec(path=line.spec.path, quota_bytes=16 << 20, min_free_bytes=0, data_nodes="data-2")
    line.service.apply_spec(spec)
    read(line, manifest)
    assert {name for name, _ in data.calls} <= {"data-2"}


def test_lost_node_costs_one_try(line: PooledLine, data: DataLine, manifest: Manifest) -> None:
    data.lost.add("data-1")
    read(line, manifest)
    asked = [name for name, _ in data.calls]
    assert 0 < asked.count("data-1") <= line.spec.data_workers.read_bounds.start
    assert line.pool._dispatch._backoffs["data-1"].failures == 1


def test_blocks_of_the_wrong_size_are_built_again(line: PooledLine, data: DataLine, manifest: Manifest) -> None:
    data.spoil = lambda block: Block(block.rows - 1, {name: array[1:] for name, array in block.arrays.items()})
    assert read(line, manifest)["data_node_blocks"] == 0


def test_errors_of_a_transform_are_those_of_this_node(line: PooledLine, manifest: Manifest) -> None:
    def boom(batch: pa.RecordBatch) -> dict[str, Any]:
        raise ValueError("boom")

    with pytest.raises(TransformFailed, match="boom"):
        read(line, manifest, Transform(fn=boom, version="1"))


def test_what_only_fails_on_data_nodes_is_built_here(
    line: PooledLine, data: DataLine, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    data.register = lambda *_: TransformFailed("The transform cannot be loaded: no module named pandas.")  # type: ignore[method-assign,assignment]
    assert read(line, manifest)["data_node_blocks"] == 0
    warnings = [record.getMessage() for record in caplog.records if "Data node" in record.getMessage()]
    assert len(warnings) == 2 and all("no module named pandas" in each for each in warnings)


def test_blocks_that_do_not_fit_are_handed_out(line: PooledLine, manifest: Manifest) -> None:
    line.service.apply_spec(CacheSpec(path=line.spec.path, quota_bytes=0, min_free_bytes=0, data_nodes="data"))
    assert read(line, manifest)["bypasses"] == NUM_BLOCKS
