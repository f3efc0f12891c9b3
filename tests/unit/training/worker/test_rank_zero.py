"""Ranks wait for the callbacks together, for longer than a collective may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from forebay.events import Request
from forebay.runtime.foreign_code import CallOutcome, OutcomeThread
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.worker import rank_zero as syncing

FEW_BEATS = 3
WAIT_S = 30.0
REQUEST = Request(target=3, global_batch=64)


class Slow:
    """A `Reporter` whose driver takes until `heard` is set."""

    def __init__(self, heard: threading.Event, error: Exception | None = None) -> None:
        self.heard, self.error = heard, error

    def report(self, *events: object) -> None:
        raise NotImplementedError

    def request(self) -> Request:
        raise NotImplementedError

    def knows(self, report: object) -> bool:
        raise NotImplementedError

    def synced_request(self) -> Request:
        self.heard.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return REQUEST


def at_once() -> threading.Event:
    heard = threading.Event()
    heard.set()
    return heard


def settle(collective: Collective) -> tuple[Request, int]:
    shared: list[object] = []
    heard = threading.Event()

    class CountingCollective:
        world = collective.world

        def broadcast_object(self, value: Any) -> Any:
            shared.append(value)
            if len(shared) > FEW_BEATS:
                heard.set()
            return collective.broadcast_object(value)

    syncing.BEAT_S = 0.02
    return syncing.synced_request(Slow(heard), CountingCollective()), len(shared)  # type: ignore[arg-type]


def test_all_ranks_hear_the_same_and_keep_in_touch_meanwhile(ranks: Callable[..., list[Any]]) -> None:
    answers = ranks(2, settle)
    assert [request for request, _ in answers] == [REQUEST, REQUEST]
    assert answers[0][1] == answers[1][1] > FEW_BEATS, "a rank that hears nothing calls rank 0 hung"


def test_an_answer_that_comes_when_the_beat_is_over_is_taken() -> None:
    class LastMoment(OutcomeThread[str]):
        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            self.outcome = CallOutcome(value="done")

    assert syncing._answer(LastMoment(str, "last-moment")) == ("done",)


def wait_for_nothing(collective: Collective) -> object:
    syncing.BEAT_S = 0.02
    return syncing.broadcast_from_rank_zero(lambda: threading.Event().wait(0.1) or None, collective)


def test_none_is_an_answer(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, wait_for_nothing) == [None, None]


def test_alone_nobody_has_to_be_told() -> None:
    assert syncing.synced_request(Slow(at_once()), SingleProcessCollective()) == REQUEST


@pytest.mark.parametrize("error", [TimeoutError("the driver does not answer"), OSError("gone")])
def test_what_rank_0_meets_is_raised_there(error: Exception) -> None:
    class Pair:
        world = SingleProcessCollective().world.__class__(rank=0, size=2)

        def broadcast_object(self, value: Any) -> Any:
            return value

    with pytest.raises(type(error), match=str(error)):
        syncing.synced_request(Slow(at_once(), error), Pair())  # type: ignore[arg-type]
