from __future__ import annotations

from forebay.driver.elastic.policy import SETTLE_S, WARM_S, Decision, PoolView, PoolWorker, State, decide

NOW = 1000.0
OLD = NOW - WARM_S - SETTLE_S


def _member(name: str, state: State = "warm", *, asked_at: float = OLD, **facts: bool) -> PoolWorker:
    return PoolWorker(name=name, asked_at=asked_at, state=state, **facts)


def _decide(*crew: PoolWorker, world: str = "", target: int = 2, min_workers: int = 1) -> Decision:
    return decide(PoolView(crew=crew, world=tuple(world), target=target, min_workers=min_workers, now=NOW))


def test_asks_for_all_who_are_missing() -> None:
    assert _decide(target=3) == Decision(ask_for=3)
    assert _decide(_member("a", "asked"), target=3).ask_for == 2


def test_nothing_to_do_when_all_is_as_wanted() -> None:
    assert _decide(_member("a"), _member("b"), world="ab") == Decision()


def test_a_first_world_waits_for_those_on_their_way() -> None:
    assert _decide(_member("a"), _member("b", "placed", asked_at=NOW - 5)).next_world == ()
    assert _decide(_member("a"), _member("b", "asked", asked_at=NOW - 1)).next_world == ()
    assert _decide(_member("a"), _member("b")).next_world == ("a", "b")


def test_a_world_never_waits_for_one_that_cannot_start() -> None:
    assert _decide(_member("a"), _member("b", "asked")).next_world == ("a",)
    assert _decide(_member("a"), _member("b", "placed")).next_world == ("a",)


def test_no_world_below_the_minimum() -> None:
    assert _decide(_member("a"), _member("b", "asked"), min_workers=2) == Decision()
    assert _decide(_member("a", is_veteran=True), _member("b", "asked"), min_workers=2) == Decision()


def test_who_is_left_of_a_broken_world_goes_on_at_once() -> None:
    decision = _decide(_member("a", is_veteran=True), target=2)
    assert decision == Decision(ask_for=1, next_world=("a",))
    coming = _member("c", "placed", asked_at=NOW)
    assert _decide(_member("a", is_veteran=True), coming, target=2).next_world == ("a",)


def test_those_who_come_together_join_in_one_change() -> None:
    crew = (_member("a"), _member("b"), _member("c", "placed", asked_at=NOW - 1))
    assert _decide(*crew, world="a", target=3) == Decision()
    assert _decide(*crew[:2], _member("c"), world="a", target=3).next_world == ("a", "b", "c")


def test_who_trained_longest_comes_first_and_stays() -> None:
    crew = (_member("c"), _member("a"), _member("b"), _member("d"))
    assert _decide(*crew, world="ca", target=4).next_world == ("c", "a", "b", "d")
    assert _decide(*crew[:3], world="cab", target=2).next_world == ("c", "a")


def test_a_worker_too_many_is_ended_at_once_unless_it_trains() -> None:
    assert _decide(_member("a"), _member("b", "placed"), world="a", target=1) == Decision(dismiss=("b",))
    shrink = _decide(_member("a"), _member("b"), world="ab", target=1)
    assert shrink == Decision(next_world=("a",))
    assert _decide(_member("a", is_veteran=True), _member("b", is_veteran=True), target=1) == Decision(
        dismiss=("b",), next_world=("a",)
    )


def test_a_warm_worker_is_kept_before_one_that_starts() -> None:
    crew = (_member("a"), _member("b", "asked", asked_at=NOW), _member("c"))
    assert _decide(*crew, world="a", target=2) == Decision(dismiss=("b",), next_world=("a", "c"))


def test_a_leaving_worker_is_replaced_and_left_behind() -> None:
    leaving = _member("b", is_leaving=True)
    assert _decide(_member("a"), leaving, world="ab") == Decision(ask_for=1, next_world=("a",))
    successor = _member("c")
    assert _decide(_member("a"), leaving, successor, world="ab") == Decision(next_world=("a", "c"))


def test_a_leaving_worker_stays_while_there_would_be_too_few() -> None:
    leaving = _member("b", is_leaving=True)
    starting = _member("c", "placed", asked_at=NOW)
    assert _decide(_member("a"), leaving, starting, world="ab", min_workers=2) == Decision()
    assert _decide(_member("a"), leaving, _member("c"), world="ab", min_workers=2).next_world == ("a", "c")


def test_a_leaving_worker_that_does_not_train_is_ended() -> None:
    assert _decide(_member("a"), _member("b", is_leaving=True), world="a", target=1) == Decision(dismiss=("b",))
