"""Three nodes of one cluster with separate disks: blocks come from their holders, in the same order."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from tests.ray.data.cache.node.cluster import kill_cache_actors, on_node, three_node_cluster

from forebay.data.cache.disk.accounts import INDEX_BYTES
from forebay.data.cache.node import client as node
from forebay.data.cache.node import peer_lookup as peers
from forebay.data.cache.node.actor import NodeCache
from forebay.data.cache.node.client import NodeCacheClient, attach
from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.loader import Loader
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.runtime.metrics import Counters
from forebay.world import World

NUM_BLOCKS, BLOCK_ROWS, GLOBAL_BATCH, LANES = 24, 4000, 6000, 6
TRANSFORM = Transform(x=Dense(["id", "x0", "x1", "x2"], dtype="float64"))
BLOCK_BYTES = BLOCK_ROWS * 4 * 8  # large enough for the object store: smaller ones travel inside a message
COUNTED = ("hits", "stores", "bypasses", "peer_hits", "parquet_opens")


class PeerSeat(NamedTuple):
    """Node and cache of a rank."""

    node_id: str
    spec: CacheSpec


class PeerPart(NamedTuple):
    """Result of one rank in an epoch: row ids of each batch, and the counters."""

    ids: list[list[int]]
    counted: dict[str, float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[str]]:
    """Ids of three nodes. This process is a driver on one of them."""
    with three_node_cluster() as nodes:
        yield nodes


def patient_class() -> type[NodeCache]:
    """`NodeCache` with a given deadline for its peers."""

    class PatientNodeCache(NodeCache):
        async def wait_for_peers(self, deadline_s: float, moment_s: float) -> None:
            self._service._peers._deadline_s, peers._MOMENT_S = deadline_s, moment_s

    return PatientNodeCache


def call(seat: PeerSeat, method: str, *arguments: object) -> Any:
    """Call the actor of a seat."""
    return NodeCacheClient(seat.spec, seat.node_id, is_here=False).call(threading.Event(), method, *arguments)


@pytest.fixture
def seats(
    cluster: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., list[PeerSeat]]]:
    """`seats(1, 0.4, 0)`: the nodes, with disks for these shares of the blocks. Their actors end with the test.

    A share of 1 has room for the blocks of all nodes. A peer may take a minute to answer on a busy machine.
    """

    def take(*shares: float) -> list[PeerSeat]:
        specs = [
            CacheSpec(path=str(tmp_path / f"disk{number}"), quota_bytes=quota_of(share), min_free_bytes=0)
            for number, share in enumerate(shares)
        ]
        taken = [PeerSeat(node_id, spec) for node_id, spec in zip(cluster, specs, strict=True)]
        with monkeypatch.context() as patch:
            patch.setattr(node, "NodeCache", patient_class())
            for seat in taken:
                NodeCacheClient(seat.spec, seat.node_id, is_here=False)
        for seat in taken:
            assert call(seat, "configure", seat.spec) is None
            call(seat, "wait_for_peers", 60.0, 60.0)
        return taken

    yield take
    kill_cache_actors()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    num_rows = NUM_BLOCKS * BLOCK_ROWS
    columns = {"id": np.arange(num_rows), **{f"x{number}": np.arange(num_rows) + number for number in range(3)}}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "data" / "a.parquet", row_group_size=BLOCK_ROWS)
    return build_plan(scan(tmp_path / "data"), seed=5, lanes=LANES)


def quota_of(share: float) -> int:
    num_blocks = NUM_BLOCKS if share == 1 else share * NUM_BLOCKS / 3
    return INDEX_BYTES + round(num_blocks * (BLOCK_BYTES + 8192)) if share else 0


def read_part(plan: Plan, spec: CacheSpec, world: World, epoch: int) -> PeerPart:
    counters = Counters()
    with Loader(
        plan,
        TRANSFORM,
        attach(spec),
        world=world,
        global_batch=GLOBAL_BATCH,
        epoch=epoch,
        as_numpy=True,
        counters=counters,
    ) as loader:
        ids = [np.asarray(batch["x"])[:, 0].astype(int).tolist() for batch in loader]
    return PeerPart(ids, {name: counters[name] for name in COUNTED})


def read_epoch(plan: Plan, seats: Sequence[PeerSeat], epoch: int) -> list[PeerPart]:
    """Read the epoch with one rank per seat at once. Checks the order against the plan."""
    worlds = [World(rank=rank, size=len(seats)) for rank in range(len(seats))]
    parts: list[PeerPart] = ray.get(
        [
            on_node(seat.node_id, read_part, plan, seat.spec, world, epoch)
            for seat, world in zip(seats, worlds, strict=True)
        ],
        timeout=300,
    )
    assert order_hash([part.ids for part in parts]) == order_hash([ids_of(plan, world, epoch) for world in worlds])
    assert sorted(row for part in parts for ids in part.ids for row in ids) == list(range(plan.num_rows))
    for part in parts:
        check_sources(part.counted)
    return parts


def ids_of(plan: Plan, world: World, epoch: int) -> list[list[int]]:
    position, batches = 0, []
    while size := plan.batch_size(position, GLOBAL_BATCH):
        rows = plan.batch(epoch, position, GLOBAL_BATCH, world)
        batches.append((rows.block * BLOCK_ROWS + rows.row).tolist())
        position += size
    return batches


def order_hash(parts: Sequence[list[list[int]]]) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def check_sources(counted: Mapping[str, float]) -> None:
    """Blocks that were not on disk came from a peer or the source, and were stored or sent."""
    assert counted["stores"] + counted["bypasses"] == counted["peer_hits"] + counted["parquet_opens"], counted


def total(parts: Sequence[PeerPart], name: str) -> float:
    return sum(part.counted[name] for part in parts)


# --- over quota ---


@pytest.mark.parametrize(
    "shares", [*(pytest.param((share,) * 3, marks=pytest.mark.variation) for share in (1, 0.4, 0)), (1, 0.4, 0)]
)
def test_order_is_the_same_under_any_quota(
    seats: Callable[..., list[PeerSeat]], plan: Plan, shares: tuple[float, ...]
) -> None:
    nodes = seats(*shares)
    cold, warm = read_epoch(plan, nodes, 0), read_epoch(plan, nodes, 1)
    assert total(cold, "parquet_opens") >= NUM_BLOCKS
    for share, first, second in zip(shares, cold, warm, strict=True):
        if share == 1:
            assert first.counted["bypasses"] == second.counted["bypasses"] == 0
            assert second.counted["hits"] > 0 and second.counted["parquet_opens"] == 0
        elif share == 0:
            assert first.counted["bypasses"] > 0 and second.counted["bypasses"] > 0
            assert first.counted["stores"] == first.counted["hits"] == second.counted["hits"] == 0
        else:
            assert first.counted["stores"] > 0 and second.counted["hits"] > 0 and second.counted["bypasses"] > 0
    if shares == (0, 0, 0):
        assert total(warm, "peer_hits") == 0, "nobody holds anything"


def test_what_one_node_holds_is_read_from_there_by_those_without_room(
    seats: Callable[..., list[PeerSeat]], plan: Plan
) -> None:
    full, *_ = nodes = seats(1, 0.4, 0)
    (alone,) = read_epoch(plan, [full], 0)
    assert alone.counted == {"hits": 0, "stores": 24, "bypasses": 0, "peer_hits": 0, "parquet_opens": 24}
    for epoch in (1, 2):
        parts = read_epoch(plan, nodes, epoch)
        assert total(parts, "parquet_opens") == 0
        first, second, third = (one.counted for one in parts)
        assert first["hits"] > 0 and first["peer_hits"] == first["bypasses"] == 0
        assert second["bypasses"] > 0 and third["bypasses"] == third["peer_hits"] > 0 and third["hits"] == 0
        if epoch == 1:
            assert second["stores"] > 0, "what comes from a peer is kept as far as there is room"
        else:
            assert second["hits"] > 0 and second["stores"] == 0
    deadline = time.monotonic() + 60
    while any(call(seat, "facts")["inflight_bytes"] for seat in nodes):
        assert time.monotonic() < deadline, "not all was let go of"
        time.sleep(0.05)


# --- resizing ---


def test_moved_lanes_come_from_peers(seats: Callable[..., list[PeerSeat]], plan: Plan) -> None:
    first, second, third = seats(1, 1, 1)
    assert total(read_epoch(plan, [first, second], 0), "parquet_opens") >= NUM_BLOCKS
    time.sleep(2.5)  # filters count as fresh for 2 s
    grown = read_epoch(plan, [first, second, third], 1)
    assert total(grown, "parquet_opens") == 0
    assert grown[1].counted["peer_hits"] > 0 and grown[2].counted["peer_hits"] > 0
    assert grown[2].counted["hits"] == 0 and grown[2].counted["stores"] == grown[2].counted["peer_hits"]
    shrunk = read_epoch(plan, [first, third], 2)
    assert total(shrunk, "parquet_opens") == 0
    assert shrunk[1].counted["peer_hits"] > 0 and shrunk[1].counted["hits"] > 0
    again = read_epoch(plan, [first, third], 3)
    assert total(again, "parquet_opens") == total(again, "peer_hits") == 0, "lanes that stay are warm"


# --- peers that fail ---


def test_blocks_lost_with_a_peer_are_read_from_their_source(seats: Callable[..., list[PeerSeat]], plan: Plan) -> None:
    first, second, _ = seats(1, 0, 0)
    read_epoch(plan, [first], 0)
    (warm,) = read_epoch(plan, [second], 1)
    assert warm.counted["parquet_opens"] == 0
    for block in (Path(first.spec.path) / "blocks").iterdir():
        block.unlink()
    (after,) = read_epoch(plan, [second], 2)
    assert after.counted["parquet_opens"] == NUM_BLOCKS and after.counted["peer_hits"] == 0


@pytest.mark.parametrize("death", [pytest.param("killed", marks=pytest.mark.variation), "stopped"])
def test_peer_that_dies_or_hangs_costs_a_read_of_the_source(
    seats: Callable[..., list[PeerSeat]], plan: Plan, death: str
) -> None:
    first, second, _ = seats(1, 0, 0)
    read_epoch(plan, [first], 0)
    pid = call(first, "facts")["pid"]
    (warm,) = read_epoch(plan, [second], 1)
    assert warm.counted["parquet_opens"] == 0
    call(second, "wait_for_peers", peers._DEADLINE_S, peers._MOMENT_S)
    os.kill(pid, signal.SIGKILL if death == "killed" else signal.SIGSTOP)
    try:
        (after,) = read_epoch(plan, [second], 2)
    finally:
        if death == "stopped":
            os.kill(pid, signal.SIGCONT)
    assert after.counted["parquet_opens"] == NUM_BLOCKS and after.counted["peer_hits"] == 0
