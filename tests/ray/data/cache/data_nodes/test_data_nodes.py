"""Blocks that CPU nodes of a real cluster build for a trainer's node: same order, and lost nodes cost time only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster

from forebay.data.cache.data_nodes.transport import RayDataNodes
from forebay.data.cache.node.client import attach
from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.loader import Loader
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.transform import Transform
from forebay.ray_cluster.actors import CACHE_PREFIX, DATA_NODE_PREFIX, NAMESPACE
from forebay.ray_cluster.nodes import nodes_for_data
from forebay.runtime.metrics import Counters
from forebay.testing.drivers.nodes import BARE_HEAD
from forebay.world import World

NUM_BLOCKS, BLOCK_ROWS, GLOBAL_BATCH = 48, 500, 600
SLOW_S = 0.1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Cluster of this process's node, which has a (made-up) GPU, and two data nodes."""
    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args={**BARE_HEAD, "num_cpus": 1, "num_gpus": 1})
    made.data_nodes = [made.add_node(num_cpus=2, resources={"data": 1}) for _ in range(2)]
    try:
        made.wait_for_nodes()
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def spec(cluster: Cluster, tmp_path: Path) -> Iterator[CacheSpec]:
    """Cache of the first node, whose data nodes have started. All actors end with the test."""
    data_nodes, give_up = RayDataNodes(ray.get_runtime_context().get_node_id()), time.monotonic() + 60
    while len(data_nodes.cores("cpu_only")) < len(nodes_for_data("cpu_only")):
        assert time.monotonic() < give_up
    yield CacheSpec(path=str(tmp_path / "cache"), quota_bytes=1 << 30, min_free_bytes=0, data_nodes="cpu_only")
    for name in actors(CACHE_PREFIX, DATA_NODE_PREFIX):
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    columns = {"id": np.arange(NUM_BLOCKS * BLOCK_ROWS)}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "data" / "a.parquet", row_group_size=BLOCK_ROWS)
    return build_plan(scan(tmp_path / "data"), seed=5, lanes=4)


def ids_of(plan: Plan) -> list[list[int]]:
    """Ids of every batch, by the plan alone."""
    position, batches = 0, []
    while size := plan.batch_size(position, GLOBAL_BATCH):
        rows = plan.batch(0, position, GLOBAL_BATCH, World(rank=0, size=1))
        batches.append((rows.block * BLOCK_ROWS + rows.row).tolist())
        position += size
    return batches


def actors(*prefixes: str) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["name"].startswith(prefixes)]


def slow(batch: pa.RecordBatch) -> dict[str, Any]:
    """Transform that takes 0.1 s on any machine, and tells the process that ran it."""
    time.sleep(SLOW_S)
    ids = batch.column("id").to_numpy()
    return {"id": ids, "pid": np.full(len(ids), os.getpid())}


def read(plan: Plan, spec: CacheSpec, at_batch: Callable[[set[int]], None] = lambda *_: None) -> Any:
    """Ids of every batch, pids of the builders, and the counters. `at_batch(pids)` runs after each batch."""
    counters, ids, pids = Counters(), [], set()
    transform = Transform(fn=slow, version="1")
    with Loader(
        plan,
        transform,
        attach(spec),
        world=World(rank=0, size=1),
        global_batch=GLOBAL_BATCH,
        as_numpy=True,
        counters=counters,
    ) as loader:
        for batch in loader:
            ids.append(np.asarray(batch["id"]).tolist())
            found = set(np.asarray(batch["pid"]).tolist())
            pids |= found
            at_batch(found)
    return ids, pids, counters


def test_data_nodes_build_in_the_same_order(plan: Plan, spec: CacheSpec) -> None:
    ids, pids, counters = read(plan, spec)
    assert ids == ids_of(plan)
    assert len(pids) == 3, "the node itself and both data nodes"
    assert len(actors(DATA_NODE_PREFIX)) == 2
    assert 0 < counters["data_node_blocks"] < NUM_BLOCKS == counters["stores"] == counters["parquet_opens"]
    again, same, warm = read(plan, spec)
    assert (again, same) == (ids, pids) and warm["hits"] and not warm["parquet_opens"], "the node has stored them"


@pytest.mark.variation("a lost node loses its actor too")
def test_killed_data_node_costs_time_only(plan: Plan, spec: CacheSpec) -> None:
    killed: list[int] = []

    def kill_one(pids: set[int]) -> None:
        cache = ray.get_actor(actors(CACHE_PREFIX)[0], namespace=NAMESPACE)
        others = pids - {ray.get(cache.facts.remote())["pid"]}
        if others and not killed:
            killed.append(others.pop())
            os.kill(killed[0], signal.SIGKILL)

    ids, _, counters = read(plan, spec, kill_one)
    assert killed, "no block came from a data node before the end"
    assert ids == ids_of(plan) and counters["stores"] == NUM_BLOCKS


def test_lost_data_node_costs_time_only(plan: Plan, spec: CacheSpec, cluster: Cluster) -> None:
    lost: list[Any] = []

    def lose_one(pids: set[int]) -> None:
        if not lost and len(pids) > 1:
            lost.append(cluster.data_nodes.pop())
            cluster.remove_node(lost[0], allow_graceful=False)

    ids, _, counters = read(plan, spec, lose_one)
    assert lost, "no block came from a data node before the end"
    assert ids == ids_of(plan) and counters["stores"] == NUM_BLOCKS


def test_nodes_are_chosen_by_gpus_or_by_a_resource(cluster: Cluster) -> None:
    here = ray.get_runtime_context().get_node_id()
    named = nodes_for_data("data")
    assert named and here not in named and nodes_for_data("cpu_only") == named
    assert nodes_for_data("GPU") == [here] and nodes_for_data("other") == []
