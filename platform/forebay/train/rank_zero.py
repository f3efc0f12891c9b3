"""What only rank 0 waits for, however long it takes: callbacks at the end of an epoch, or storage."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from forebay.events import Commands, Reporter
from forebay.train.collectives.collective import Collective

BEAT_S = 1.0
"""Ranks that wait for longer than a collective's timeout would call rank 0 hung."""

T = TypeVar("T")


def settled_orders(reporter: Reporter, collective: Collective) -> Commands:
    """`reporter.settled_orders()` of rank 0, on all ranks."""
    return awaited(reporter.settled_orders, collective)


def awaited(ask: Callable[[], T], collective: Collective) -> T:
    """`ask()` of rank 0, on all ranks, which hear from each other while they wait. Rank 0 calls it in a thread."""
    if collective.world.size == 1:
        return ask()
    asked = _begin(ask) if collective.world.is_first else None
    while True:
        answer: tuple[T] | None = collective.share(None if asked is None else _answer(asked))
        if answer is not None:
            return answer[0]


def _begin(ask: Callable[[], T]) -> Future[T]:
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again where it is asked for
            answer.set_exception(error)

    Thread(target=run, name="forebay-settle", daemon=True).start()
    return answer


def _answer(asked: Future[T]) -> tuple[T] | None:
    try:
        return (asked.result(timeout=BEAT_S),)
    except TimeoutError:
        # It may be the answer's own, or the answer may have come just now.
        return (asked.result(),) if asked.done() else None
