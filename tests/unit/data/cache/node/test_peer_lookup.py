"""Blocks from other nodes: found on their holders, and a silent peer is not waited for twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.waiting import until

from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node import peer_directory as directory_module
from forebay.data.cache.node import peer_lookup as peers_module
from forebay.data.cache.node.peer_directory import OWN, HeardFilter
from forebay.data.cache.node.peer_lookup import PeerLookup, PeerSilent
from forebay.data.cache.node.service import PeerServer
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.runtime.metrics import Counters

KEYS = [f"{number:08x}" * 5 for number in range(40)]
TRANSFORM = Transform(id=Dense("id", dtype="float64"))


class LookupLine:
    """Transport of plain calls to the servers of other nodes. Records all requests."""

    def __init__(self) -> None:
        self.doors: dict[str, PeerServer[Block]] = {}
        self.silent: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.spoil: Callable[[Block], Block] = lambda block: block
        self.later_s = 0.0

    def add(self, name: str, cache: DiskCache) -> None:
        self.doors[name] = PeerServer(lambda: cache, lambda block: block)

    def peer_names(self) -> list[str]:
        self.asked.append(("all", "names"))
        if "all" in self.silent:
            raise PeerSilent("no list")
        return list(self.doors)

    def ask_filters(
        self, names: Collection[str], known: Collection[str], within_s: float, deadline_s: float
    ) -> Mapping[str, Mapping[str, HeardFilter]]:
        self.asked += [(name, "summary") for name in names]
        return {
            name: {OWN: HeardFilter(self.doors[name].bloom_filter().result(60))}
            for name in names
            if name not in self.silent
        }

    def fetch_block(self, name: str, key: str, deadline_s: float) -> Block | None:
        self.asked.append((name, key))
        if name in self.silent:
            raise PeerSilent("too slow")
        found = self.doors[name].block(key).result(60)
        return self.spoil(found) if found else None

    def num_asked(self, what: str) -> int:
        return sum(question == what for _, question in self.asked)


@pytest.fixture
def line() -> Iterator[LookupLine]:
    made = LookupLine()
    yield made
    for door in made.doors.values():
        door.close(5.0)


@pytest.fixture
def disk(tmp_path: Path) -> Callable[[str], DiskCache]:
    def open_disk(name: str) -> DiskCache:
        return DiskCache(tmp_path / name, quota_bytes=16 << 20, min_free_bytes=0)

    return open_disk


class NotedLock:
    """Lock that records the timeouts of its waiters."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        self.waits.append(timeout)
        return self._lock.acquire(timeout=timeout)


@pytest.fixture
def peers(line: LookupLine, disk: Callable[[str], DiskCache], monkeypatch: pytest.MonkeyPatch) -> PeerLookup:
    """Peers after their first round: `b` holds the first 20 of KEYS, `c` the next 10, with 5 rows each."""
    monkeypatch.setattr(directory_module, "_ROUND_S", 600.0)
    for name, held in {"b": KEYS[:20], "c": KEYS[20:30]}.items():
        cache = disk(name)
        for key in held:
            assert cache.put(key, "clicks", Block.of({"id": np.full(5, int(key[:8], 16))}))
        line.add(name, cache)
    return PeerLookup(line, deadline_s=60.0, clock=lambda: time.monotonic() + line.later_s)


def test_asks_the_one_that_holds_it(peers: PeerLookup, line: LookupLine) -> None:
    for number in (3, 25):
        block = peers.find(KEYS[number], 5)
        assert block is not None and block.arrays["id"].tolist() == [number] * 5
    assert peers.find(KEYS[35], 5) is None
    assert [question for question in line.asked if question[1] in KEYS] == [("b", KEYS[3]), ("c", KEYS[25])]
    assert line.num_asked("names") == 1 and line.num_asked("summary") == 2, "known for a while"


def test_no_request_is_sent_before_a_block_is_missing(peers: PeerLookup, line: LookupLine) -> None:
    time.sleep(0.1)
    assert line.asked == []


def test_block_that_was_evicted_since_is_no_failure(
    peers: PeerLookup, line: LookupLine, disk: Callable[[str], DiskCache]
) -> None:
    assert peers.find(KEYS[0], 5)
    disk("b").clear()
    assert peers.find(KEYS[1], 5) is None
    assert peers.find(KEYS[2], 5) is None
    assert line.asked[-1] == ("b", KEYS[2]), "it is asked again: it may have others"


def test_old_filters_serve_as_long_as_they_lead_to_blocks(
    peers: PeerLookup, line: LookupLine, disk: Callable[[str], DiskCache]
) -> None:
    """Every 2 s, each node that missed blocks asked all others again, although it knew who had them."""
    assert peers.find(KEYS[0], 5)
    line.later_s = 6000
    assert all(peers.find(key, 5) for key in KEYS[1:30])
    assert line.num_asked("summary") == 2, "of the first round"
    disk("b").clear()
    assert disk("c").put(KEYS[35], "clicks", Block.of({"id": np.zeros(5)}))
    assert peers.find(KEYS[35], 5) and line.num_asked("summary") == 4, "no filter had it"
    line.later_s = 12000
    assert disk("c").put(KEYS[2], "clicks", Block.of({"id": np.zeros(5)}))
    assert peers.find(KEYS[2], 5) and line.num_asked("summary") == 6


def test_a_holder_by_an_old_filter_is_asked_once(
    peers: PeerLookup, line: LookupLine, disk: Callable[[str], DiskCache]
) -> None:
    assert peers.find(KEYS[0], 5)
    disk("b").clear()
    line.later_s = 6000
    assert disk("c").put(KEYS[1], "clicks", Block.of({"id": np.zeros(5)}))
    assert peers.find(KEYS[1], 5), "its new filter says so, and the next one is asked"
    assert [name for name, question in line.asked if question == KEYS[1]] == ["b", "c"]


def test_another_one_is_asked_where_the_first_has_it_no_more(
    peers: PeerLookup, line: LookupLine, disk: Callable[[str], DiskCache]
) -> None:
    copy = disk("d")
    for key in KEYS[:20]:
        assert copy.put(key, "clicks", Block.of({"id": np.full(5, int(key[:8], 16))}))
    line.add("d", copy)
    assert peers.find(KEYS[0], 5)
    disk("b").clear()
    assert all(peers.find(key, 5) for key in KEYS[:20])
    assert {name for name, question in line.asked if question in KEYS} == {"b", "d"}


def test_silent_peer_is_left_alone(peers: PeerLookup, line: LookupLine) -> None:
    assert peers.find(KEYS[0], 5)
    line.silent.add("b")
    assert peers.find(KEYS[1], 5) is None
    line.silent.clear()
    asked = len(line.asked)
    assert peers.find(KEYS[2], 5) is None
    assert len(line.asked) == asked
    assert peers.find(KEYS[22], 5), "the others go on"


def test_peer_without_a_summary_is_left_alone(peers: PeerLookup, line: LookupLine) -> None:
    line.silent.add("b")
    assert peers.find(KEYS[0], 5) is None
    assert peers.find(KEYS[22], 5)
    assert [question for name, question in line.asked if name == "b"] == ["summary"]


def test_peers_that_cannot_be_listed_are_none(peers: PeerLookup, line: LookupLine) -> None:
    line.silent.add("all")
    assert peers.find(KEYS[0], 5) is None
    assert line.asked == [("all", "names")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda block: Block(4, {"id": block.arrays["id"][:4]}),
        lambda block: Block(5, {"id": block.arrays["id"][:4]}),
        lambda block: Block(4, {"id": block.arrays["id"]}),
    ],
)
def test_wrong_rows_are_not_taken_and_the_peer_is_left_alone(
    peers: PeerLookup, line: LookupLine, spoil: Callable[[Block], Block]
) -> None:
    line.spoil = spoil
    assert peers.find(KEYS[0], 5) is None
    line.spoil = lambda block: block
    assert peers.find(KEYS[0], 5) is None
    assert line.num_asked(KEYS[0]) == 1


def test_threads_wait_for_the_first_round_and_a_moment_for_later_ones(
    peers: PeerLookup, line: LookupLine, disk: Callable[[str], DiskCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, go = threading.Event(), threading.Event()
    names, lock = line.peer_names, NotedLock()
    peers._refreshing = lock  # type: ignore[assignment]

    def slow_names() -> list[str]:
        asking.set()
        assert go.wait(120)
        return names()

    line.peer_names = slow_names  # type: ignore[method-assign]
    found: list[Block | None] = []
    threads = [threading.Thread(target=lambda key=key: found.append(peers.find(key, 5))) for key in KEYS[:4]]
    for thread in threads:
        thread.start()
    assert asking.wait(60) and not found
    until(lambda: len(lock.waits) == 4)
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and all(found) and line.num_asked("names") == 1

    go.clear()
    asking.clear()
    line.later_s = 6000
    assert disk("c").put(KEYS[39], "clicks", Block.of({"id": np.zeros(5)}))
    monkeypatch.setattr(peers_module, "_MOMENT_S", 600.0)
    threads = [threading.Thread(target=lambda: found.append(peers.find(KEYS[39], 5))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert asking.wait(60)
    until(lambda: lock.waits[-2:] == [600.0, 600.0])
    monkeypatch.setattr(peers_module, "_MOMENT_S", 0.05)
    assert peers.find(KEYS[38], 5) is None, "by what is known, if the round takes long"
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6 and all(found), "what has been stored since the first round"


# --- as part of making blocks ---


@pytest.fixture
def manifest(parquet_folder: Callable[..., Path]) -> Manifest:
    return scan(parquet_folder({"a.parquet": [3, 4], "b.parquet": [5]}))


def make_all(manifest: Manifest, cache: DiskCache | None, peers: PeerLookup | None) -> tuple[list[float], Counters]:
    counters = Counters()
    builder = BlockBuilder(Dataset(manifest, TRANSFORM), cache, counters=counters, options=BuildOptions(peers=peers))
    blocks = [builder.build(index)[0] for index in range(len(manifest))]
    return np.concatenate([block.arrays["id"] for block in blocks]).ravel().tolist(), counters


def test_what_a_peer_holds_is_stored_and_its_source_not_opened(
    line: LookupLine, manifest: Manifest, disk: Callable[[str], DiskCache]
) -> None:
    line.add("b", disk("b"))
    ids, first = make_all(manifest, disk("b"), None)
    again, counters = make_all(manifest, disk("a"), PeerLookup(line))
    assert again == ids == list(range(12)) and first["parquet_opens"] == 3
    assert (counters["peer_hits"], counters["stores"], counters["parquet_opens"]) == (3, 3, 0)
    assert counters["peer_bytes"] == first["stored_bytes"] and counters["peer_s"] > 0
    assert make_all(manifest, disk("a"), None)[1]["hits"] == 3, "and from now on they are here"


def test_what_a_peer_holds_and_does_not_fit_is_handed_out(
    line: LookupLine, manifest: Manifest, disk: Callable[[str], DiskCache], tmp_path: Path
) -> None:
    line.add("b", disk("b"))
    ids, _ = make_all(manifest, disk("b"), None)
    full = DiskCache(tmp_path / "full", quota_bytes=1, min_free_bytes=0)
    again, counters = make_all(manifest, full, PeerLookup(line))
    assert again == ids
    assert (counters["peer_hits"], counters["bypasses"], counters["stores"], counters["parquet_opens"]) == (3, 3, 0, 0)


def test_peers_that_fail_cost_no_more_than_the_source(
    line: LookupLine, manifest: Manifest, disk: Callable[[str], DiskCache]
) -> None:
    line.add("b", disk("b"))
    ids, _ = make_all(manifest, disk("b"), None)
    line.spoil = lambda block: Block(1, {"id": block.arrays["id"][:1]})
    again, counters = make_all(manifest, disk("a"), PeerLookup(line))
    assert again == ids
    assert (counters["peer_hits"], counters["stores"], counters["parquet_opens"]) == (0, 3, 3)
    assert len([question for question in line.asked if len(question[1]) == 40]) == 1
