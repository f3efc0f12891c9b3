"""Epochs on small Ray nodes with a disk each, beside what the model of the data plane says."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from studies.data_plane.restart import after_loss, blocks_of
from studies.ray_nodes.counted import ReceivedCall, received
from studies.ray_nodes.model import ModelEpoch, model_of

from forebay.data.cache.node.client import attach
from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.loader import Loader
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.ray_cluster.actors import CACHE_PREFIX, actors_by_name
from forebay.runtime.metrics import Counters
from forebay.world import World

GROUPS_OF_NODE, GROUPS_OF_FILE, ROWS = 20, 10, 4000
BATCH_OF_NODE = 1000
AT_ONCE = 8
"""Nodes that read at once: with 32 on two cores, answers took more than the 5 s for which a cache waits for them."""
T = TypeVar("T")
TRANSFORM = Transform(x=Dense(["a", "b", "c", "d"], dtype="float64"))
"""128 kB a block: smaller ones travel inside a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCalls:
    """An epoch on all nodes: calls at the caches, and blocks by where they came from.

    `pids` are the processes of the caches, by node.
    """

    calls: Sequence[ReceivedCall]
    pids: Sequence[int]
    from_source: int
    from_peers: int
    opened: int

    def most(self, method: str) -> int:
        """Calls of a method at the busiest cache."""
        return max(Counter(call.pid for call in self.of(method)).values(), default=0)

    def total(self, method: str) -> int:
        return len(self.of(method))

    def num_bytes(self, method: str) -> int:
        return sum(call.num_bytes for call in self.of(method))

    def of(self, method: str) -> list[ReceivedCall]:
        return [call for call in self.calls if call.method == method]

    @property
    def looked_up_at(self) -> list[list[float]]:
        """Times at which each node looked up a block."""
        return [[call.at for call in self.of("find") if call.pid == pid] for pid in self.pids]

    @property
    def answer_s(self) -> list[list[float]]:
        """Times until the peers that each node asked together for filters had answered."""
        return [[call.took_s for call in self.of("ask_filters") if call.pid == pid] for pid in self.pids]


def write_files(folder: Path, nodes: int) -> Plan:
    """Plan of small files, with 20 row groups for each node."""
    folder.mkdir(parents=True)
    rows = GROUPS_OF_FILE * ROWS
    for number in range(nodes * GROUPS_OF_NODE // GROUPS_OF_FILE):
        columns = {name: np.arange(rows, dtype=np.float64) + number for name in "abcd"}
        pq.write_table(pa.table(columns), folder / f"part-{number:05}.parquet", row_group_size=ROWS)
    return build_plan(scan(str(folder)), seed=1, lanes=4 * nodes)


def _read(plan: Plan, spec: CacheSpec, world: World, batch: int) -> dict[str, float]:
    counters = Counters()
    options = {"global_batch": batch, "epoch": 0, "as_numpy": True, "counters": counters}
    with Loader(plan, TRANSFORM, attach(spec), world=world, **options) as loader:
        for _ in loader:
            pass
    return counters.as_dict()


def _open(spec: CacheSpec) -> None:
    attach(spec)


def _on(node: str, work: Callable[..., T], *arguments: object) -> ray.ObjectRef[T]:
    """Call `work` in a task on a node."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=1, scheduling_strategy=strategy)(work).remote(*arguments)


def _epoch(plan: Plan, seats: Sequence[tuple[str, CacheSpec]], ranks: Sequence[int], counted: Path) -> EpochCalls:
    for node, spec in seats:  # one after another: the processes of 32 nodes take minutes of two cores to start
        ray.get(_on(node, _open, spec))
    began, size, found = time.time(), len(seats), Counter[str]()
    asked: list[ray.ObjectRef[dict[str, float]]] = []
    for (node, spec), rank in zip(seats, ranks, strict=True):
        if len(asked) >= AT_ONCE:
            done, asked = ray.wait(asked)
            found.update(ray.get(done[0]))
        asked.append(_on(node, _read, plan, spec, World(rank=rank, size=size), BATCH_OF_NODE * size))
    for counters in ray.get(asked):
        found.update(counters)
    facts = ray.get([actor.facts.remote() for actor in actors_by_name(CACHE_PREFIX).values()])
    pids = {each["node_id"]: each["pid"] for each in facts}
    return EpochCalls(
        calls=[call for call in received(counted) if call.at >= began],
        pids=[pids[node] for node, _ in seats],
        from_source=round(found["stores"] - found["peer_hits"]),
        from_peers=round(found["peer_hits"]),
        opened=round(found["parquet_opens"]),
    )


def measure(folder: Path, counted: Path) -> tuple[EpochCalls, EpochCalls, ModelEpoch]:
    """First epoch, and one after half of the nodes have lost their disks and ranks have moved."""
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    plan = write_files(folder / "data", len(nodes))
    seats = [
        (node, CacheSpec(path=str(folder / f"disk{number}"), quota_bytes=1 << 30, min_free_bytes=0))
        for number, node in enumerate(nodes)
    ]
    first = _epoch(plan, seats, range(len(nodes)), counted)
    for actor in actors_by_name(CACHE_PREFIX).values():
        ray.kill(actor)
    needed = blocks_of(plan, len(nodes))
    held, ranks = after_loss(needed)
    for (_, spec), blocks in zip(seats, held, strict=True):
        if not blocks:
            shutil.rmtree(spec.path)
    again = _epoch(plan, seats, ranks, counted)
    return first, again, model_of([needed[rank] for rank in ranks], held, again.looked_up_at, again.answer_s)
