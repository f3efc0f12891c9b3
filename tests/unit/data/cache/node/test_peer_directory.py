"""Peers to ask and peers to skip, at given times."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection

import pytest

from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.node.peer_directory import OWN, HeardFilter, PeerDirectory


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:40]


KEYS = [key(number) for number in range(300)]


def own(held: Collection[str] = (), *, asks: bool = False) -> dict[str, HeardFilter]:
    return {OWN: HeardFilter(BloomFilter.of(held), asks=asks)}


def ask(directory: PeerDirectory, now: float) -> list[str]:
    return sorted(directory.to_ask(now))


@pytest.fixture
def directory() -> PeerDirectory:
    """Directory in which `a` and `b` hold all of KEYS, `c` none."""
    made = PeerDirectory()
    made.set_peers(["b", "a", "c"], 100.0)
    assert ask(made, 100.0) == ["a", "b", "c"]
    made.record_answers(["a", "b", "c"], {"a": own(KEYS), "b": own(KEYS), "c": own()}, 100.0)
    assert made.to_ask(100.0) == []
    made.end_round(100.0)
    return made


def test_a_new_directory_has_no_peers_and_is_stale() -> None:
    new = PeerDirectory()
    assert not new.has_refreshed and new.is_stale(0.0) and new.holders(KEYS[0], 0.0) == []


def test_asked_again_after_two_seconds(directory: PeerDirectory) -> None:
    assert directory.has_refreshed
    assert not directory.is_stale(101.9)
    assert directory.is_stale(102.0) and ask(directory, 102.0) == ["a", "b", "c"]


def test_a_peer_is_asked_once_in_a_round_however_slow_the_answers_are() -> None:
    directory, names = PeerDirectory(), {f"{number:04d}" for number in range(16)}
    directory.set_peers(names, 0.0)
    asked = directory.to_ask(0.0)
    directory.record_answers(asked, dict.fromkeys(asked, own()), 1.5)
    rest = directory.to_ask(1.5)
    assert {*asked, *rest} == names
    directory.record_answers(rest, dict.fromkeys(rest, own()), 4.0)
    assert directory.to_ask(4.0) == [], "although the first filters are old by now"
    directory.end_round(4.0)
    assert not directory.is_stale(5.9) and directory.is_stale(6.0) and len(directory.to_ask(6.0)) == 8


def test_many_peers_are_asked_less_often_and_listed_less_often() -> None:
    directory, names = PeerDirectory(), [f"{number:04d}" for number in range(1000)]
    directory.set_peers(names, 0.0)
    first = directory.to_ask(0.0)[0]
    directory.record_answers([first], {first: own() | dict.fromkeys(names, HeardFilter(BloomFilter(b"\1")))}, 0.0)
    assert directory.to_ask(19.9) == [] and len(directory.to_ask(20.0)) == 8
    assert not directory.needs_list(99.9) and directory.needs_list(100.0)


def test_a_round_that_leaves_peers_unasked_is_followed_by_another_at_once() -> None:
    directory = PeerDirectory()
    directory.set_peers([str(number) for number in range(20)], 0.0)
    assert len(directory.to_ask(0.0)) == 8
    directory.end_round(0.0)
    assert directory.is_stale(0.0)


def test_an_answer_brings_the_filters_that_the_peer_has_received() -> None:
    told, directory = PeerDirectory(), PeerDirectory()
    told.set_peers(["b", "c", "d"], 50.0)
    nothing = BloomFilter.of(())
    assert not told.answer(nothing, (), 2.0, 50.0)[OWN].asks
    told.record_answers(["b"], {"b": own(KEYS[:3])}, 51.0)
    told.record_answers(["c"], {"c": own(KEYS[3:6])}, 51.5)
    assert told.answer(nothing, (), 2.0, 52.0).keys() == {"b", "c", OWN}
    assert told.answer(nothing, {"b"}, 2.0, 52.0).keys() == {"c", OWN}
    assert told.answer(nothing, (), 0.6, 52.0).keys() == {"c", OWN}, "b's is too old"
    assert told.answer(nothing, (), 2.0, 53.4)[OWN].asks and not told.answer(nothing, (), 2.0, 53.5)[OWN].asks
    directory.set_peers(["a", "b", "c"], 1000.0)
    directory.record_answers(["a"], {"a": told.answer(nothing, (), 2.0, 52.0)}, 1000.5)
    assert directory.holders(KEYS[0], 1000.5) == ["b"] and directory.holders(KEYS[4], 1000.5) == ["c"]
    assert directory.to_ask(1001.4) == [] and directory.to_ask(1001.6) == ["b"], "by the age that was sent"
    directory.record_answers(["a"], {"a": {**own(), "b": HeardFilter(nothing, 30.0)}}, 1001.6)
    assert directory.holders(KEYS[0], 1001.6) == ["b"], "an older one changes nothing"


def test_a_node_that_joined_after_the_list_is_taken_and_one_that_had_left_before_is_not() -> None:
    directory = PeerDirectory()
    directory.set_peers(["a"], 100.0)
    answer = {"new": HeardFilter(BloomFilter.of(KEYS), 1.0), "gone": HeardFilter(BloomFilter.of(KEYS), 6.0)}
    directory.record_answers(["a"], {"a": own() | answer}, 105.0)
    assert directory.holders(KEYS[0], 105.0) == ["new"]
    directory.record_failure("new", 105.0)
    directory.record_answers(["a"], {"a": {**own(), "new": HeardFilter(BloomFilter.of(KEYS), 0.5)}}, 106.0)
    assert directory.holders(KEYS[0], 106.0) == [], "others do not know that it is silent"


def told_by(names: Collection[str], *, asks: bool = True) -> dict[str, HeardFilter]:
    return own(asks=asks) | dict.fromkeys(names, HeardFilter(BloomFilter.of(())))


def test_of_1000_nodes_that_lack_the_same_filter_few_ask_its_node_at_once() -> None:
    names, came = [f"{number:04d}" for number in range(1000)], 0
    for seed in range(100):
        directory = PeerDirectory(seed)
        directory.set_peers(names, 0.0)
        directory.record_answers(["0001"], {"0001": told_by(set(names) - {"0500"})}, 0.0)
        asked = directory.to_ask(0.0)
        assert len(asked) == 8 and directory.missing(0.0) == ["0500"]
        came += "0500" in asked
    assert came <= 5, "8 in 1000 of them"


def test_a_filter_that_others_lack_too_is_asked_for_in_later_rounds_and_at_last_at_its_node() -> None:
    names, asked = [f"{number:03d}" for number in range(100)], Counter[str]()
    directory = PeerDirectory()
    directory.set_peers(names, 0.0)
    while "050" not in (batch := directory.to_ask(0.0)):
        directory.record_answers(batch, dict.fromkeys(batch, told_by(set(names) - {"050"})), 0.0)
        if not directory.to_ask(0.0):
            directory.end_round(0.0)
            assert not directory.is_stale(1.9), "the others need time to hear of it"
        asked.update(batch)
    assert max(asked.values(), default=1) == 1, "each of the others once before it, at most"


@pytest.mark.parametrize(("nodes", "asks"), [(20, True), (100, False)])
def test_of_few_nodes_and_where_others_do_not_ask_only_missing_filters_are_asked_for(nodes: int, asks: bool) -> None:
    names, directory = [f"{number:03d}" for number in range(nodes)], PeerDirectory()
    directory.set_peers(names, 0.0)
    directory.record_answers(["001"], {"001": told_by(set(names) - {"007"}, asks=asks)}, 0.0)
    assert directory.to_ask(0.0) == ["007"]


def test_holders_share_the_load_and_a_key_has_always_the_same(directory: PeerDirectory) -> None:
    asked = Counter(directory.holders(one, 100.0)[0] for one in KEYS)
    assert asked.keys() == {"a", "b"} and min(asked.values()) > 100
    assert [directory.holders(one, 100.0) for one in KEYS] == [directory.holders(one, 101.0) for one in KEYS]
    assert all(sorted(directory.holders(one, 100.0)) == ["a", "b"] for one in KEYS)
    assert sum(bool(directory.holders(key(number), 100.0)) for number in range(1000, 1100)) < 5


def test_failed_peer_rests_and_is_asked_again_later(directory: PeerDirectory) -> None:
    directory.record_failure("a", 100.0)
    assert {name for one in KEYS for name in directory.holders(one, 101.0)} == {"b"}
    assert ask(directory, 129.9) == ["b", "c"]
    assert ask(directory, 130.0) == ["a", "b", "c"]
    assert {name for one in KEYS for name in directory.holders(one, 130.0)} == {"b"}, (
        "what it said before it failed is forgotten"
    )
    directory.record_answers(["a"], {"a": own(KEYS)}, 130.0)
    assert {name for one in KEYS for name in directory.holders(one, 130.0)} == {"a", "b"}


def test_rest_doubles_with_each_failure_in_a_row_up_to_ten_minutes(directory: PeerDirectory) -> None:
    now, rests = 0.0, []
    for _ in range(7):
        directory.record_failure("a", now)
        start = now
        while "a" not in directory.to_ask(now):
            now += 5.0
        rests.append(now - start)
    assert rests == [30, 60, 120, 240, 480, 600, 600]
    directory.record_success("a")
    directory.record_failure("a", now)
    assert "a" in directory.to_ask(now + 30)


def test_threads_that_waited_together_count_as_one_failure(directory: PeerDirectory) -> None:
    for later in range(4):
        directory.record_failure("a", 100.0 + later)
    assert "a" not in directory.to_ask(129.9) and "a" in directory.to_ask(130.0)


def test_removed_peers_are_dropped(directory: PeerDirectory) -> None:
    directory.set_peers(["b"], 102.0)
    assert {name for one in KEYS for name in directory.holders(one, 102.0)} == {"b"}
    directory.set_peers([], 104.0)
    assert directory.holders(KEYS[0], 104.0) == []
