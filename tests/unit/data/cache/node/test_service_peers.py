"""Answers to other nodes: from disk, verified, and a bounded number at a time."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node import service
from forebay.data.cache.node.service import PeerServer, open_requests
from forebay.data.transform.block import Block

KEYS = [f"{number:08x}" * 5 for number in range(20)]


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    made = DiskCache(tmp_path / "cache", quota_bytes=16 << 20, min_free_bytes=0)
    for number, key in enumerate(KEYS[:10]):
        assert made.put(key, "clicks", Block.of({"id": np.full((100, 300), number)}))
    return made


@pytest.fixture
def door(cache: DiskCache) -> Iterator[PeerServer[Block]]:
    made = PeerServer(lambda: cache, lambda block: block)
    yield made
    made.close(5.0)


def test_hands_out_what_is_on_disk_and_nothing_else(door: PeerServer[Block]) -> None:
    block = door.block(KEYS[7]).result(60)
    assert block is not None and (block.arrays["id"] == 7).all()
    assert door.block(KEYS[15]).result(60) is None


def test_tells_what_it_has_at_the_moment(door: PeerServer[Block], cache: DiskCache) -> None:
    assert all(key in door.bloom_filter().result(60) for key in KEYS[:10])
    cache.clear()
    assert not any(key in door.bloom_filter().result(60) for key in KEYS)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "0" * 39, "0" * 40 + "\n", "A" * 40, "../blocks/" + KEYS[0]])
def test_key_that_is_none_reaches_no_file(door: PeerServer[Block], key: str) -> None:
    assert door.block(key).result(60) is None


def test_damaged_block_is_not_handed_out(door: PeerServer[Block], cache: DiskCache) -> None:
    path = CacheDirectory(cache.path).block(KEYS[3])
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    assert door.block(KEYS[3]).result(60) is None
    assert not path.exists(), "moved to quarantine"


def test_disk_that_vanished_has_nothing(door: PeerServer[Block], cache: DiskCache) -> None:
    shutil.rmtree(cache.path)
    assert door.block(KEYS[3]).result(60) is None


def test_few_at_a_time_and_the_rest_are_turned_away(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_OPEN", 6)
    go, counting = threading.Event(), threading.Lock()
    inside = most = 0

    def send(block: Block) -> Block:
        nonlocal inside, most
        with counting:
            inside += 1
            most = max(most, inside)
        go.wait(120)
        with counting:
            inside -= 1
        return block

    door = PeerServer(lambda: cache, send)
    futures = [door.block(key) for key in KEYS[:10]]
    turned_away = [future for future in futures if future.done()]
    assert len(turned_away) == 4 and all(future.result() is None for future in turned_away)
    while inside < 4:
        time.sleep(0.01)
    go.set()
    assert sum(future.result(60) is not None for future in futures) == 6
    assert most == 4
    assert door.block(KEYS[0]).result(60) is not None, "there is room again"
    door.close(5.0)


@pytest.mark.parametrize(("block_bytes", "most"), [(1000, 512), (16 << 20, 128), (128 << 20, 32), (1 << 30, 32)])
def test_a_node_accepts_as_many_requests_as_2_gib_of_blocks(block_bytes: int, most: int) -> None:
    assert open_requests(block_bytes) == most


def test_many_small_blocks_are_sent_to_all_that_ask(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_OPEN", 2)
    go = threading.Event()

    def send(block: Block) -> Block:
        go.wait(120)
        return block

    door = PeerServer(lambda: cache, send)
    door.bloom_filter().result(60)
    futures = [door.block(key) for key in KEYS[:10]]
    go.set()
    assert all(future.result(60) is not None for future in futures)
    door.close(5.0)
