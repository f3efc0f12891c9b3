"""Growing waits until the next workers are warm, shrinking and failures do not wait, and bounds are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.training.driver.elastic.policy import SETTLE_S, WARM_S, Decision, PoolView, PoolWorker, decide

NOW = 1000.0
STATES = {"r": "requested", "p": "placed", "w": "warm"}


def workers(text: str) -> list[PoolWorker]:
    """One worker per item: name, state (w, p or r), and marks: `-` leaves, `*` is a veteran, `!` is overdue."""
    return [
        PoolWorker(
            name=word[0],
            state=STATES[word[1]],  # type: ignore[arg-type]
            since=NOW - WARM_S - SETTLE_S if "!" in word else NOW - 1.0,
            is_leaving="-" in word,
            is_veteran="*" in word,
        )
        for word in text.split()
    ]


def decided(text: str, *, world: str = "", target: int = 2, **terms: Any) -> Decision:
    given: dict[str, Any] = {"workers": workers(text), "world": tuple(world), "min_workers": 1, "now": NOW}
    return decide(PoolView(**(given | terms), target=target))


@pytest.mark.parametrize(
    ("text", "target", "spawn"),
    [("", 3, 3), ("ar", 3, 2), ("aw bw", 2, 0), ("aw bw-", 2, 1)],
    ids=["first look", "one is requested", "as wanted", "one leaves"],
)
def test_missing_workers_are_spawned(text: str, target: int, spawn: int) -> None:
    assert decided(text, target=target).spawn == spawn


@pytest.mark.parametrize(
    ("text", "world", "target", "next_world"),
    [
        ("aw bw", "ab", 2, ""),
        ("aw bw", "ab", 1, "a"),
        ("aw bw cw", "ab", 1, "a"),
        ("aw br", "a", 2, ""),
        ("aw bp", "a", 2, ""),
        ("aw bw cp", "a", 3, ""),
        ("aw bw cr", "a", 3, ""),
        ("aw bw cp!", "a", 3, "ab"),
        ("aw bw cr!", "a", 3, "ab"),
        ("aw bw cw", "a", 3, "abc"),
        ("aw bw cw dw", "a", 3, "abc"),
        ("cw aw bw dw", "ca", 4, "cabd"),
        ("cw aw bw", "cab", 2, "ca"),
        ("aw br cw", "a", 2, "ac"),
        ("aw", "ab", 2, "a"),
    ],
    ids=[
        "as wanted",
        "shrink",
        "shrink, though more are warm",
        "requested",
        "growth is coming",
        "one of two is warm, the other will be",
        "one of two is warm, the other may find a place",
        "one of two is warm, the other takes too long",
        "one of two is warm, the other has no place",
        "all warm",
        "more than wanted",
        "ranks that trained come first",
        "ranks that trained longest stay",
        "a warm worker is taken before one that starts",
        "one is lost",
    ],
)
def test_world_at_work(text: str, world: str, target: int, next_world: str) -> None:
    assert decided(text, world=world, target=target).next_world == tuple(next_world)


@pytest.mark.parametrize(
    ("text", "terms", "next_world"),
    [
        ("aw bw- cr!", {}, "a"),
        ("aw bw- cr!", {"min_workers": 2}, ""),
        ("aw bw- cw", {"min_workers": 2}, "ac"),
        ("aw bw- cw dr!", {"target": 3}, "ac"),
        ("aw bw-", {}, ""),
        ("aw bw- cp", {}, ""),
        ("aw bw- cp", {"is_urgent": True}, "a"),
        ("aw bw-", {"is_urgent": True}, "a"),
        ("aw- bw-", {"is_urgent": True}, ""),
        ("aw- bw- cw", {"is_urgent": True}, "c"),
        ("aw bw- cp", {"target": 1}, "a"),
    ],
    ids=[
        "no room for a successor",
        "too few would be left",
        "just enough",
        "moved at the same size",
        "a successor is requested at the same look",
        "there is time for a successor",
        "there is none",
        "there is none from the first look on",
        "nowhere to go",
        "all moved",
        "no successor is wanted",
    ],
)
def test_world_that_leaves_a_node(text: str, terms: dict[str, Any], next_world: str) -> None:
    assert decided(text, **({"world": "ab"} | terms)).next_world == tuple(next_world)


@pytest.mark.parametrize(
    ("text", "terms", "next_world"),
    [
        ("ap bp", {}, ""),
        ("aw bp", {}, ""),
        ("aw br", {}, ""),
        ("aw br!", {}, "a"),
        ("aw bp!", {}, "a"),
        ("aw bw", {}, "ab"),
        ("aw bw cw", {}, "ab"),
        ("aw br!", {"min_workers": 2}, ""),
        ("aw* br", {}, "a"),
        ("aw* br", {"min_workers": 2}, ""),
        ("aw* bw* cr", {"target": 3, "min_workers": 2}, "ab"),
        ("aw* bw*-", {"min_workers": 2}, "ab"),
        ("aw* bw*-", {}, "a"),
        ("ap- br", {"min_workers": 2}, ""),
    ],
    ids=[
        "none is warm",
        "others will be within seconds",
        "others may find a place",
        "the cluster has no more room",
        "one takes too long to start",
        "all",
        "more than wanted",
        "too few",
        "survivors go on at once",
        "too few survived",
        "enough survived",
        "a leaving worker is better than none",
        "a leaving worker is left behind",
        "none that leaves is waited for",
    ],
)
def test_first_world(text: str, terms: dict[str, Any], next_world: str) -> None:
    assert decided(text, **terms).next_world == tuple(next_world)


@pytest.mark.parametrize(
    ("text", "world", "target", "dismissed"),
    [
        ("aw bp", "a", 1, "b"),
        ("aw bw", "ab", 1, ""),
        ("aw* bw*", "", 1, "b"),
        ("aw br cw", "a", 2, "b"),
        ("aw br cp dw", "a", 3, "b"),
        ("aw bw-", "a", 1, "b"),
        ("aw bw-", "ab", 2, ""),
    ],
    ids=[
        "one too many that starts",
        "one too many that trains",
        "one too many between two worlds",
        "one that starts, for a warm one",
        "one without a place, for one that starts",
        "one that leaves",
        "one that leaves and trains",
    ],
)
def test_workers_that_are_not_needed_are_ended(text: str, world: str, target: int, dismissed: str) -> None:
    assert decided(text, world=world, target=target).dismiss == tuple(dismissed)


class CountedName(str):
    """Name whose comparisons are counted."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        CountedName.compared += 1
        return str.__hash__(self)


@pytest.mark.parametrize("target", [0.5, 1.0, 1.5], ids=["shrink", "as wanted", "grow"])
def test_a_look_compares_as_many_names_as_there_are_workers(target: float) -> None:
    def compared(count: int) -> int:
        names = [CountedName(number) for number in range(3 * count // 2)]
        asked = [
            PoolWorker(name=name, since=0.0, state="warm", is_veteran=rank < count, is_leaving=rank % 8 == 0)
            for rank, name in enumerate(names)
        ]
        view = PoolView(
            workers=asked, world=names[:count], target=int(count * target), min_workers=1, is_urgent=True, now=NOW
        )
        CountedName.compared = 0
        decide(view)
        decide(replace(view, world=()))
        return CountedName.compared

    assert compared(512) <= 10 * compared(64), "8 times the workers cost more than n log n"
