"""Peers to ask and peers to skip, at given times."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.node.peer_lookup import PeerDirectory


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:40]


KEYS = [key(number) for number in range(300)]


@pytest.fixture
def directory() -> PeerDirectory:
    """Directory in which `a` and `b` hold all of KEYS, `c` none."""
    made = PeerDirectory()
    assert made.set_peers(["b", "a", "c"], 100.0) == ["a", "b", "c"]
    for name, held in {"a": KEYS, "b": KEYS, "c": []}.items():
        made.set_filter(name, BloomFilter.of(held))
    made.end_round(100.0)
    return made


def test_a_new_directory_has_no_peers_and_is_stale() -> None:
    new = PeerDirectory()
    assert not new.has_refreshed and new.is_stale(0.0) and new.holders(KEYS[0], 0.0) == []


def test_asked_again_after_two_seconds(directory: PeerDirectory) -> None:
    assert directory.has_refreshed
    assert not directory.is_stale(101.9)
    assert directory.is_stale(102.0)


def test_many_peers_are_asked_less_often() -> None:
    directory = PeerDirectory()
    directory.set_peers([str(number) for number in range(1000)], 0.0)
    directory.end_round(0.0)
    assert not directory.is_stale(19.9) and directory.is_stale(20.0)


def test_holders_share_the_load_and_a_key_has_always_the_same(directory: PeerDirectory) -> None:
    asked = Counter(directory.holders(one, 100.0)[0] for one in KEYS)
    assert asked.keys() == {"a", "b"} and min(asked.values()) > 100
    assert [directory.holders(one, 100.0) for one in KEYS] == [directory.holders(one, 101.0) for one in KEYS]
    assert all(sorted(directory.holders(one, 100.0)) == ["a", "b"] for one in KEYS)
    assert sum(bool(directory.holders(key(number), 100.0)) for number in range(1000, 1100)) < 5


def test_failed_peer_rests_and_is_asked_again_later(directory: PeerDirectory) -> None:
    directory.record_failure("a", 100.0)
    assert {name for one in KEYS for name in directory.holders(one, 101.0)} == {"b"}
    assert directory.set_peers(["a", "b", "c"], 129.9) == ["b", "c"]
    assert directory.set_peers(["a", "b", "c"], 130.0) == ["a", "b", "c"]
    assert {name for one in KEYS for name in directory.holders(one, 130.0)} == {"b"}, (
        "what it said before it failed is forgotten"
    )
    directory.set_filter("a", BloomFilter.of(KEYS))
    assert {name for one in KEYS for name in directory.holders(one, 130.0)} == {"a", "b"}


def test_rest_doubles_with_each_failure_in_a_row_up_to_ten_minutes(directory: PeerDirectory) -> None:
    now, rests = 0.0, []
    for _ in range(7):
        directory.record_failure("a", now)
        start = now
        while "a" not in directory.set_peers(["a"], now):
            now += 5.0
        rests.append(now - start)
    assert rests == [30, 60, 120, 240, 480, 600, 600]
    directory.record_success("a")
    directory.record_failure("a", now)
    assert directory.set_peers(["a"], now + 30) == ["a"]


def test_threads_that_waited_together_count_as_one_failure(directory: PeerDirectory) -> None:
    for later in range(4):
        directory.record_failure("a", 100.0 + later)
    assert directory.set_peers(["a"], 130.0) == ["a"]


def test_removed_peers_are_dropped(directory: PeerDirectory) -> None:
    directory.set_peers(["b"], 102.0)
    assert {name for one in KEYS for name in directory.holders(one, 102.0)} == {"b"}
    directory.set_peers([], 104.0)
    assert directory.holders(KEYS[0], 104.0) == []
