"""Results of rank 0 that all ranks wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from forebay.events import Reporter, Request
from forebay.runtime.foreign_code import OutcomeThread, begin
from forebay.training.collectives.collective import Collective

BEAT_S = 1.0
"""Interval of broadcasts. Without them, ranks that wait longer than a collective's timeout would call rank 0 hung."""

T = TypeVar("T")
V = TypeVar("V")


def synced_request(reporter: Reporter, collective: Collective) -> Request:
    """Return `reporter.synced_request()` of rank 0 on all ranks."""
    return broadcast_from_rank_zero(reporter.synced_request, collective)


def broadcast_from_rank_zero(call: Callable[[], T], collective: Collective) -> T:
    """Broadcast the result of rank 0's `call()`, without a timeout.

    Rank 0 calls it in a thread, and informs the other ranks every `BEAT_S` seconds that it is still running.
    """
    if collective.world.size == 1:
        return call()
    pending = _start(call) if collective.world.is_first else None
    while True:
        answer: tuple[T] | None = collective.broadcast_object(None if pending is None else _answer(pending))
        if answer is not None:
            return answer[0]


def _start(call: Callable[[], T]) -> OutcomeThread[T]:
    thread = OutcomeThread(call, "forebay-rank-zero")
    begin(thread)
    return thread


def _answer(pending: OutcomeThread[T]) -> tuple[T] | None:
    pending.join(BEAT_S)
    return None if pending.outcome is None else (pending.outcome.result(),)


def combined(call: Callable[[], V], decide: Callable[[Sequence[V]], T], collective: Collective) -> T:
    """Return `decide` of all ranks' results, without a timeout.

    `decide` is called as by `Collective.combine`. A rank on which `call` raises leaves with the exception.
    """
    if collective.world.size == 1:
        return decide([call()])
    pending = _start(call)

    def decided(answers: Sequence[tuple[V] | None]) -> tuple[T] | None:
        done = [answer[0] for answer in answers if answer is not None]
        return (decide(done),) if len(done) == len(answers) else None

    while (result := collective.combine(_answer(pending), decided)) is None:
        pass
    return result[0]
