"""Service of a node's cache and its clients, joined by plain calls instead of Ray."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.waiting import until

from forebay.data.cache.block_key import BlockNames
from forebay.data.cache.builders import registered_datasets
from forebay.data.cache.builders.registered_datasets import BuildFailed, pack
from forebay.data.cache.disk import directory
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node import service as service_module
from forebay.data.cache.node.service import NodeService
from forebay.data.cache.node.source import NodeSource
from forebay.data.cache.requests import InMemoryBlock, StoredBlock
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.errors import CacheUnusable, Cancelled, InvalidOption, NullLabel, TransformFailed
from forebay.runtime.metrics import Counters

TRANSFORM = Transform(id=Dense("id", dtype="float64"))


class ServiceLine:
    """Transport of plain calls in place of the Ray actor. Records them."""

    def __init__(self, spec: CacheSpec, *, is_here: bool = True) -> None:
        self.spec = spec
        self.is_here = is_here
        self.service = NodeService(spec)
        self.calls: list[str] = []

    def disk(self) -> DiskCache:
        return self.spec.open()

    def call(self, cancelled: threading.Event, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        if method == "register":
            dataset_id, payload, spec = arguments
            self.service.apply_spec(spec)
            return self.service.register(dataset_id, payload)
        dataset_id, index, with_arrays = arguments
        future = self.service.request(dataset_id, index)
        if future is None:
            return "unknown"
        while not future.done():
            if cancelled.wait(0.01):
                raise Cancelled("closed")
        reply = future.result().next_reply()
        return StoredBlock(sums=reply.sums) if isinstance(reply, InMemoryBlock) and not with_arrays else reply


@pytest.fixture
def spec(tmp_path: Path) -> CacheSpec:
    return CacheSpec(path=str(tmp_path / "cache"), quota_bytes=16 << 20, min_free_bytes=0)


@pytest.fixture
def line(spec: CacheSpec) -> Iterator[ServiceLine]:
    made = ServiceLine(spec)
    yield made
    made.service.close(5.0)


@pytest.fixture
def manifest(parquet_folder: Callable[..., Path]) -> Manifest:
    return scan(parquet_folder({"a.parquet": [3, 4], "b.parquet": [5]}))


@pytest.fixture
def wide(tmp_path: Path) -> Callable[..., Manifest]:
    """`wide(name)`: four row groups of 20,000 rows, whose blocks take 160 kB each."""

    def write(name: str) -> Manifest:
        rows = pa.table({"id": np.arange(80_000, dtype=np.int64)})
        (tmp_path / name).mkdir()
        pq.write_table(rows, tmp_path / name / "a.parquet", row_group_size=20_000)
        return scan(tmp_path / name)

    return write


def read_all(
    line: ServiceLine, manifest: Manifest, transform: Transform = TRANSFORM
) -> tuple[list[float], dict[str, float]]:
    counters = Counters()
    with closing(NodeSource(line, Dataset(manifest, transform), counters)) as source:
        futures = [source.request(index) for index in range(len(manifest))]
        ids = np.concatenate([future.result(30).arrays["id"] for future in futures]).ravel().tolist()
    names = ("hits", "stores", "bypasses", "parquet_opens", "quarantined")
    return ids, {name: counters[name] for name in names if counters[name]}


def test_registers_once_and_asks_only_for_what_is_not_on_disk(line: ServiceLine, manifest: Manifest) -> None:
    ids, counted = read_all(line, manifest)
    assert ids == list(range(12))
    assert counted == {"stores": 3, "parquet_opens": 3}
    assert line.calls.count("register") == 1
    line.calls.clear()
    assert read_all(line, manifest) == (ids, {"hits": 3})
    assert line.calls == []


def test_unknown_data_sets_are_registered_again(
    line: ServiceLine, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_datasets, "_MOST_DATASETS", 1)
    with closing(NodeSource(line, Dataset(manifest, TRANSFORM), Counters())) as source:
        assert source.request(0).result(60).rows == 3
        read_all(line, manifest, Transform(id=Dense("id", dtype="float32")))
        assert source.request(1).result(60).rows == 4
    assert line.calls.count("register") == 3


def test_the_first_request_gets_the_counters_and_the_others_a_hit(line: ServiceLine, manifest: Manifest) -> None:
    go = threading.Event()

    def wait(batch: pa.RecordBatch) -> dict[str, Any]:
        go.wait(120)
        return {"id": np.asarray(batch["id"])}

    source = NodeSource(line, Dataset(manifest, Transform(fn=wait, version="1")), Counters())
    names = source._id
    line.service._datasets._known[names] = Dataset(manifest, Transform(fn=wait, version="1")), b""
    futures = [line.service.request(names, 0) for _ in range(3)]
    go.set()
    replies = [future.result(60).next_reply() for future in futures if future]
    assert [reply.sums.get("stores", 0) for reply in replies if isinstance(reply, StoredBlock)] == [1, 0, 0]
    assert [reply.sums.get("hits", 0) for reply in replies if isinstance(reply, StoredBlock)] == [0, 1, 1]
    source.close()


def test_newest_bounds_count(line: ServiceLine, spec: CacheSpec, manifest: Manifest) -> None:
    line.spec = CacheSpec(path=spec.path, quota_bytes=1000, min_free_bytes=0, num_reads=3)
    assert read_all(line, manifest)[1] == {"bypasses": 3, "parquet_opens": 3}
    assert line.service.measured()["num_reads"] == 3
    line.spec = replace(spec, num_reads="auto")
    with closing(NodeSource(line, Dataset(manifest, Transform(id=Dense(["id"], dtype="int64"))), Counters())) as source:
        source.request(0).result(60)
    assert read_all(line, manifest)[1] == {"stores": 3, "parquet_opens": 3}
    assert line.service.measured()["num_reads"] == 8
    assert line.service.counters["reads_allowed"] == 3 * 3 + 4 * 8, "all four of them were stored under the newer limit"


def test_blocks_of_another_node_stay_there(line: ServiceLine, manifest: Manifest) -> None:
    line.is_here = False
    counters = Counters()
    with closing(NodeSource(line, Dataset(manifest, TRANSFORM), counters)) as source:
        block = source.request(0).result(60)
    assert (block.rows, dict(block.arrays)) == (3, {})
    assert counters["stores"] == 1 and counters["map_s"] > 0


def test_error_comes_with_its_place(line: ServiceLine, manifest: Manifest) -> None:
    def boom(batch: pa.RecordBatch) -> dict[str, Any]:
        raise ValueError("boom")

    with (
        closing(NodeSource(line, Dataset(manifest, Transform(fn=boom, version="1")), Counters())) as source,
        pytest.raises(TransformFailed, match="boom") as caught,
    ):
        source.request(0).result(60)
    assert "in boom" in str(caught.value.__cause__)


def test_a_block_stored_on_an_unreadable_disk_is_an_error(
    line: ServiceLine, manifest: Manifest, tmp_path: Path
) -> None:
    line.spec = CacheSpec(path=str(tmp_path / "elsewhere"), quota_bytes=16 << 20, min_free_bytes=0)
    line.service.apply_spec = lambda spec: None  # type: ignore[method-assign]
    with (
        closing(NodeSource(line, Dataset(manifest, TRANSFORM), Counters())) as source,
        pytest.raises(CacheUnusable, match="same disk"),
    ):
        source.request(0).result(60)


def test_close_ends_waiting_for_the_service(line: ServiceLine, manifest: Manifest) -> None:
    go = threading.Event()

    def wait(batch: pa.RecordBatch) -> dict[str, Any]:
        go.wait(60)
        return {"id": np.asarray(batch["id"])}

    source = NodeSource(line, Dataset(manifest, TRANSFORM), Counters())
    line.service._datasets._known[source._id] = Dataset(manifest, Transform(fn=wait, version="1")), b""
    future = source.request(0)
    time.sleep(0.1)
    start = time.monotonic()
    source.close(60.0)
    assert time.monotonic() - start < 20.0
    with pytest.raises(CancelledError):
        future.result(0)
    go.set()


def test_failures_cost_what_they_cost(line: ServiceLine, manifest: Manifest) -> None:
    def boom(batch: pa.RecordBatch) -> dict[str, Any]:
        raise ValueError("boom")

    line.service._datasets._known["d"] = Dataset(manifest, Transform(fn=boom, version="1")), b""
    future = line.service.request("d", 0)
    assert future
    reply = future.result(60).next_reply()
    assert isinstance(reply, BuildFailed) and reply.sums["parquet_opens"] == 1


# --- over quota ---


def test_quota_of_nothing_stores_nothing(line: ServiceLine, spec: CacheSpec, manifest: Manifest) -> None:
    line.spec = replace(spec, quota_bytes=0)
    for _ in range(2):
        assert read_all(line, manifest) == (list(range(12)), {"bypasses": 3, "parquet_opens": 3})
    assert list((Path(spec.path) / "blocks").iterdir()) == []
    with pytest.raises(InvalidOption, match="quota_bytes=-1"):
        replace(spec, quota_bytes=-1).open()


def test_memory_of_loose_blocks_is_bounded_however_many_ask(
    spec: CacheSpec, parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreleased blocks take at most the bound and one block for each data worker."""
    manifest = scan(parquet_folder({"a.parquet": [1000] * 40}))
    block_bytes, num_reads = 8 * 1000, 2
    monkeypatch.setattr(service_module, "_MOST_INFLIGHT_BYTES", 3 * block_bytes)
    service = NodeService(replace(spec, quota_bytes=0, num_reads=num_reads))
    names = BlockNames(Dataset(manifest, TRANSFORM))
    service.register(names.id, pack(Dataset(manifest, TRANSFORM)))
    open_requests = deque(service.request(names.id, index) for index in range(40))
    until(lambda: service.inflight_bytes.current > 3 * block_bytes)
    time.sleep(0.3)
    num_made = sum(future.done() for future in open_requests if future)
    assert num_made <= 3 + num_reads, "nobody has taken one, so no more are made"
    while open_requests:  # each reply is dropped as soon as it is taken, as the actor does
        future = open_requests.popleft()
        assert future and isinstance(future.result(30).next_reply(), InMemoryBlock)
        del future
    assert 3 * block_bytes < service.inflight_bytes.peak <= (3 + num_reads) * block_bytes
    until(lambda: service.inflight_bytes.current == 0)
    service.close(5.0)


def test_close_ends_waiting_for_memory(spec: CacheSpec, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_MOST_INFLIGHT_BYTES", 0)
    service = NodeService(replace(spec, quota_bytes=0, num_reads=1))
    names = BlockNames(Dataset(manifest, TRANSFORM))
    service.register(names.id, pack(Dataset(manifest, TRANSFORM)))
    futures = [service.request(names.id, index) for index in range(3)]
    assert futures[0]
    kept = futures[0].result(60).next_reply()
    start = time.monotonic()
    service.close(60.0)
    assert time.monotonic() - start < 20.0 and isinstance(kept, InMemoryBlock)


# --- many datasets under one quota ---


@pytest.fixture
def stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every dataset its own lock. A shared one would protect an idle dataset."""
    monkeypatch.setattr(directory, "_NUM_STRIPES", 1 << 32)


@pytest.mark.usefixtures("stripes")
def test_idle_data_sets_are_evicted_whole_and_oldest_first_and_never_one_in_use(
    line: ServiceLine, spec: CacheSpec, wide: Callable[[str], Manifest]
) -> None:
    first, second, third, fourth, fifth = (wide(f"data{number}") for number in range(5))
    stored = {"stores": 4, "parquet_opens": 4}
    for manifest in (first, second, third):
        assert read_all(line, manifest)[1] == stored
    line.spec = replace(spec, quota_bytes=line.service.cache.used_bytes + 100_000)  # no room for a block more
    with closing(NodeSource(line, Dataset(first, TRANSFORM), Counters())) as user:
        assert read_all(line, fourth)[1] == stored
        kept = [use.dataset.partition("-")[0] for use in line.service.cache.datasets()]
        assert kept == ["data0", "data2", "data3"], "the first is in use, so the second had to go"
        assert user.request(0).result(60).rows == 20_000
        assert read_all(line, first)[1] == {"hits": 4}
    assert read_all(line, fifth)[1] == stored
    kept = [use.dataset.partition("-")[0] for use in line.service.cache.datasets()]
    assert kept == ["data2", "data3", "data4"], "now the first is the oldest idle one"
    assert all(use.blocks == 4 for use in line.service.cache.datasets()), "none is evicted in part"


@pytest.mark.usefixtures("stripes")
def test_where_all_are_in_use_the_newcomer_is_not_stored(
    line: ServiceLine, spec: CacheSpec, wide: Callable[[str], Manifest]
) -> None:
    first, second = wide("first"), wide("second")
    read_all(line, first)
    line.spec = replace(spec, quota_bytes=line.service.cache.used_bytes + 100_000)
    with closing(NodeSource(line, Dataset(first, TRANSFORM), Counters())):
        assert read_all(line, second)[1] == {"bypasses": 4, "parquet_opens": 4}
        assert read_all(line, first)[1] == {"hits": 4}
    assert read_all(line, second)[1] == {"stores": 4, "parquet_opens": 4}


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("quota_bytes", [1 << 24, 1])
def test_a_block_with_rejected_rows_serves_only_who_leaves_them_out(
    line: ServiceLine, tmp_path: Path, quota_bytes: int, is_here: bool
) -> None:
    labels = [None if number % 3 == 0 else number % 2 for number in range(30)]
    pq.write_table(pa.table({"id": range(30), "label": labels}), tmp_path / "a.parquet", row_group_size=10)
    transform = Transform(id=Dense("id", dtype="float64"), label=Label("label"))
    line.is_here = is_here
    line.spec = replace(line.spec, quota_bytes=quota_bytes)
    for where in ("label is not None", "label == 1", "label is not None"):
        dataset = Dataset(scan(tmp_path / "a.parquet", where=where), transform)
        with closing(NodeSource(line, dataset, Counters())) as source:
            blocks = [source.request(index).result(30) for index in range(3)]
            assert [list(block.arrays) for block in blocks] == [["id", "label"] if is_here else []] * 3
            assert [block.rows for block in blocks] == [10] * 3
    whole = Dataset(scan(tmp_path / "a.parquet"), transform)
    with closing(NodeSource(line, whole, Counters())) as source, pytest.raises(NullLabel):
        source.request(1).result(30)
