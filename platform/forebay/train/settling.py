"""The end of an epoch waits for callbacks, however long they take."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread

from forebay.train.collective import Collective
from forebay.train.events import Reporter
from forebay.train.orders import Orders

BEAT_S = 1.0
"""Ranks that wait for longer than a collective's timeout would call rank 0 hung."""


def settled_orders(reporter: Reporter, collective: Collective) -> Orders:
    """`reporter.settled_orders()` of rank 0, on all ranks, which hear from each other while they wait."""
    if collective.world.size == 1:
        return reporter.settled_orders()
    asked = _ask(reporter) if collective.world.is_first else None
    while True:
        orders = collective.share(None if asked is None else _answer(asked))
        if orders is not None:
            return orders


def _ask(reporter: Reporter) -> Future[Orders]:
    answer: Future[Orders] = Future()

    def ask() -> None:
        try:
            answer.set_result(reporter.settled_orders())
        except BaseException as error:  # noqa: BLE001 - raised again where it is asked for
            answer.set_exception(error)

    Thread(target=ask, name="forebay-settle", daemon=True).start()
    return answer


def _answer(asked: Future[Orders]) -> Orders | None:
    try:
        return asked.result(timeout=BEAT_S)
    except TimeoutError:
        if asked.done():
            raise
        return None
