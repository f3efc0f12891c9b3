"""Cache actor of a node: single, pinned, found by name, restarted when killed, with correct blocks."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray
from tests.ray.data.cache.node.cluster import kill_cache_actors, on_node, three_node_cluster
from tests.waiting import until

from forebay.data.cache.node.actor import NAMESPACE
from forebay.data.cache.node.client import attach, attach_all
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.errors import CacheUnusable, LoaderClosed, SourceChanged, TransformFailed
from forebay.runtime.metrics import Counters

WriteParquet = Callable[..., Path]
ROWS = {"a.parquet": [30, 20], "b.parquet": [10, 40, 5]}
NUM_ROW_GROUPS = 5
TRANSFORM = Transform(id=Dense("id", dtype="float64"), label=Label("clicked"))
COUNTED = ("hits", "stores", "bypasses", "parquet_opens", "quarantined")


@pytest.fixture
def manifest(parquet_folder: WriteParquet) -> Manifest:
    return scan(parquet_folder(ROWS))


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[CacheSpec]:
    """A cache for this test only. Its actors end with the test."""
    made = CacheSpec(path=str(tmp_path / "cache"), quota_bytes=16 << 20, min_free_bytes=0)
    yield made
    if ray.is_initialized():
        kill_cache_actors()


def read_all(
    spec: CacheSpec, manifest: Manifest, transform: Transform = TRANSFORM
) -> tuple[list[float], dict[str, float]]:
    """Ids of all blocks from the actor of the calling node, and the counters."""
    counters = Counters()
    with closing(attach(spec).source(Dataset(manifest, transform), counters)) as source:
        futures = [source.request(index) for index in range(len(manifest))]
        ids = np.concatenate([future.result(60).arrays["id"] for future in futures]).ravel().tolist()
    return ids, {name: counters[name] for name in COUNTED if counters[name]}


def slow_ids(batch: pa.RecordBatch) -> dict[str, Any]:
    time.sleep(0.3)
    return {"id": np.asarray(batch.column("id"), dtype=np.float64)}


# --- one node ---


@pytest.mark.usefixtures("ray_session")
def test_blocks_come_as_mapped_files_and_a_warm_cache_opens_no_file(manifest: Manifest, spec: CacheSpec) -> None:
    ids, counted = read_all(spec, manifest)
    assert ids == list(range(manifest.num_rows))
    assert counted == {"stores": NUM_ROW_GROUPS, "parquet_opens": NUM_ROW_GROUPS}
    again, counted = read_all(spec, manifest)
    assert again == ids and counted == {"hits": NUM_ROW_GROUPS}
    counters = Counters()
    with closing(attach(spec).source(Dataset(manifest, TRANSFORM), counters)) as source:
        block = source.request(0).result(30)
        assert block.owner is not None and not block.arrays["id"].flags.owndata
        assert counters["hit_bytes"] == block.nbytes


@pytest.mark.usefixtures("ray_session")
def test_one_actor_per_directory_found_by_name_from_anywhere(spec: CacheSpec, tmp_path: Path) -> None:
    here = attach(spec)
    pid = here.facts()["pid"]
    assert attach(spec).facts()["pid"] == pid != os.getpid()
    assert ray.get(ray.remote(lambda: attach(spec).facts()["pid"]).remote()) == pid
    by_name = ray.get_actor(here.name, namespace="forebay")
    assert ray.get(by_name.facts.remote()) == here.facts()
    other = CacheSpec(path=str(tmp_path / "other"), quota_bytes=16 << 20, min_free_bytes=0)
    assert attach(other).facts()["pid"] != pid


@pytest.mark.usefixtures("ray_session")
def test_two_jobs_at_once_read_each_row_group_once(manifest: Manifest, spec: CacheSpec) -> None:
    transform = Transform(fn=slow_ids, version="1")
    job = ray.remote(num_cpus=1)(lambda: read_all(spec, manifest, transform))
    replies = ray.get([job.remote() for _ in range(3)])
    assert all(ids == list(range(manifest.num_rows)) for ids, _ in replies)
    total = {name: sum(counted.get(name, 0) for _, counted in replies) for name in COUNTED}
    assert total == {"parquet_opens": 5, "stores": 5, "hits": 10, "bypasses": 0, "quarantined": 0}


@pytest.mark.usefixtures("ray_session")
def test_what_does_not_fit_comes_through_the_object_store(manifest: Manifest, tmp_path: Path, spec: CacheSpec) -> None:
    small = CacheSpec(path=spec.path, quota_bytes=1000, min_free_bytes=0)
    for _ in range(2):
        ids, counted = read_all(small, manifest)
        assert ids == list(range(manifest.num_rows))
        assert counted == {"bypasses": NUM_ROW_GROUPS, "parquet_opens": NUM_ROW_GROUPS}
    assert list((tmp_path / "cache" / "blocks").iterdir()) == []
    ids, counted = read_all(spec, manifest)
    assert counted["stores"] == NUM_ROW_GROUPS, "the newest job's quota counts"


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("death", [pytest.param("killed by Ray", marks=pytest.mark.variation), "killed by the system"])
def test_killed_actor_is_made_again_with_its_entries_intact(manifest: Manifest, spec: CacheSpec, death: str) -> None:
    client = attach(spec)
    pid = client.facts()["pid"]
    counters = Counters()
    with closing(client.source(Dataset(manifest, Transform(fn=slow_ids, version="1")), counters)) as source:
        futures = [source.request(index) for index in range(NUM_ROW_GROUPS)]
        futures[0].result(30)
        if death == "killed by Ray":
            ray.kill(ray.get_actor(client.name, namespace=NAMESPACE))
        else:
            os.kill(pid, signal.SIGKILL)
        ids = np.concatenate([future.result(60).arrays["id"] for future in futures]).ravel().tolist()
    assert ids == list(range(manifest.num_rows))
    assert attach(spec).facts()["pid"] != pid
    assert counters["stores"] + counters["hits"] == NUM_ROW_GROUPS
    again, counted = read_all(spec, manifest, Transform(fn=slow_ids, version="1"))
    assert again == ids and counted == {"hits": NUM_ROW_GROUPS}
    assert list((Path(spec.path) / "temp").iterdir()) == []


@pytest.mark.usefixtures("ray_session")
def test_damaged_block_is_made_again(manifest: Manifest, spec: CacheSpec) -> None:
    ids, _ = read_all(spec, manifest)
    path = min((Path(spec.path) / "blocks").iterdir())
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    again, counted = read_all(spec, manifest)
    assert again == ids
    assert counted == {"hits": 4, "quarantined": 1, "stores": 1, "parquet_opens": 1}


@pytest.mark.usefixtures("ray_session")
def test_errors_arrive_as_themselves(manifest: Manifest, spec: CacheSpec, parquet_folder: WriteParquet) -> None:
    def boom(batch: pa.RecordBatch) -> dict[str, Any]:
        raise ValueError("boom in the transform")

    with (
        closing(attach(spec).source(Dataset(manifest, Transform(fn=boom, version="1")), Counters())) as source,
        pytest.raises(TransformFailed, match="boom in the transform") as caught,
    ):
        source.request(0).result(30)
    assert "in boom" in str(caught.value.__cause__), "with the place where it happened"
    parquet_folder({"a.parquet": [7]})
    with closing(attach(spec).source(Dataset(manifest, TRANSFORM), Counters())) as source:
        with pytest.raises(SourceChanged, match="a.parquet"):
            source.request(0).result(30)
        assert source.request(2).result(30).rows == 10, "the actor goes on"


@pytest.mark.usefixtures("ray_session")
def test_code_of_a_file_that_the_actor_cannot_import(
    manifest: Manifest, spec: CacheSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "only_here.py"
    path.write_text(
        "import numpy as np\nFACTOR = 2.0\ndef double(batch):\n    return {'id': np.asarray(batch['id']) * FACTOR}\n"
    )
    loader = importlib.util.spec_from_file_location("only_here", path)
    assert loader and loader.loader
    module = importlib.util.module_from_spec(loader)
    monkeypatch.setitem(sys.modules, "only_here", module)
    loader.loader.exec_module(module)
    ids, _ = read_all(spec, manifest, Transform(fn=module.double))
    assert ids == [2.0 * row for row in range(manifest.num_rows)]


@pytest.mark.usefixtures("ray_session")
def test_close_does_not_wait_for_the_actor(manifest: Manifest, spec: CacheSpec) -> None:
    def for_ever(batch: pa.RecordBatch) -> dict[str, Any]:
        time.sleep(20)
        return {}

    source = attach(spec).source(Dataset(manifest, Transform(fn=for_ever, version="1")), Counters())
    futures: list[Future[Block]] = [source.request(index) for index in range(NUM_ROW_GROUPS)]
    time.sleep(0.5)
    start = time.monotonic()
    source.close(timeout_s=60.0)
    assert time.monotonic() - start < 10.0
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(0)
    with pytest.raises(LoaderClosed):
        source.request(0)


@pytest.mark.usefixtures("ray_session")
def test_an_unusable_directory_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = CacheSpec(path=str(tmp_path / "file"), quota_bytes=1 << 20)
    for way in (attach, attach_all):
        with pytest.raises(CacheUnusable, match="cannot be written"):
            way(bad)
    kill_cache_actors()


# --- three nodes ---


@pytest.fixture
def three_nodes(ray_off: None) -> Iterator[list[str]]:
    with three_node_cluster() as nodes:
        yield nodes


# test_node_peers.py reads from the actors of three nodes.
@pytest.mark.variation
def test_three_nodes_have_an_actor_each_and_any_driver_finds_them(
    three_nodes: list[str], manifest: Manifest, spec: CacheSpec
) -> None:
    facts = ray.get([on_node(node_id, lambda: attach(spec).facts()) for node_id in three_nodes])
    assert [fact["node_id"] for fact in facts] == three_nodes, "each is pinned to the node that asked for it"
    assert len({fact["pid"] for fact in facts}) == 3
    again = ray.get([on_node(node_id, lambda: attach(spec).facts()) for node_id in three_nodes])
    assert [fact["pid"] for fact in again] == [fact["pid"] for fact in facts]

    address = ray.get_runtime_context().gcs_address
    ray.shutdown()
    ray.init(address=address, log_to_driver=False, logging_level="error")
    clients = attach_all(spec)
    assert sorted(clients) == [node_id[:12] for node_id in three_nodes]
    found = [clients[node_id[:12]].facts() for node_id in three_nodes]
    assert [fact["pid"] for fact in found] == [fact["pid"] for fact in facts], "they outlive the driver that made them"

    counters = {}
    for name, client in clients.items():
        counters[name] = Counters()
        with closing(client.source(Dataset(manifest, TRANSFORM), counters[name])) as source:
            futures = [source.request(index) for index in range(NUM_ROW_GROUPS)]
            assert sum(future.result(60).rows for future in futures) == manifest.num_rows
    # These three nodes are one machine with one disk: each finds the blocks that the others stored.
    assert sum(each["parquet_opens"] for each in counters.values()) == NUM_ROW_GROUPS
    assert sum(each["hits"] for each in counters.values()) == 2 * NUM_ROW_GROUPS

    pid = found[1]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: ray.get(on_node(three_nodes[1], lambda: attach(spec).facts()["pid"])) != pid)
    revived = ray.get(on_node(three_nodes[1], lambda: attach(spec).facts()))
    assert revived["node_id"] == three_nodes[1]
    ids, counted = ray.get(on_node(three_nodes[1], lambda: read_all(spec, manifest)))
    assert ids == list(range(manifest.num_rows)) and counted == {"hits": NUM_ROW_GROUPS}


def test_client_that_outlives_its_cluster_starts_no_other(ray_off: None, spec: CacheSpec) -> None:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    client = attach(spec)
    ray.shutdown()
    with pytest.raises(CacheUnusable, match="has left its Ray cluster.*close loaders before ray.shutdown"):
        client.facts()
    assert not ray.is_initialized()
