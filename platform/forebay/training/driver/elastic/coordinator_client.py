"""A worker's side of the coordinator of its run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from forebay.events import EpochEnded, Evaluated, Event, Request

_UNAVAILABLE_S = 1.0


class CoordinatorReporter:
    """`Reporter` that sends events without waiting.

    Ends this process when the coordinator has died. Requests are rare, and no commit should wait for a round trip. So
    one call to the coordinator stays pending and returns when the request changes. Use one reporter per world: it
    does not know the request of an earlier one.
    """

    def __init__(self, coordinator: ActorHandle) -> None:
        self._coordinator = coordinator
        self._mine = threading.local()  # Others report too: a watch of stalls, the meter of the node.
        self._known: Request | None = None
        self._change: Future[None] | None = None

    def report(self, *events: Event) -> None:
        self._mine.events, self._mine.last = events, self._coordinator.report.remote(*events)

    def request(self) -> Request:
        if self._known is None or self._has_changed:
            return self._hear(_answer(self._coordinator.request.remote))
        self._coordinator.committed.remote()
        return self._known

    def synced_request(self) -> Request:
        # Ray may reorder calls of one caller, so this call names the event it comes after.
        # The last event of this thread: another thread may be about to record an earlier one.
        mine, number = self._mine, 0
        if hasattr(mine, "last"):
            number = _answer(lambda: self._coordinator.report.remote(*mine.events), mine.last)
        return self._hear(_answer(lambda: self._coordinator.synced_request.remote(number)))

    def knows(self, report: EpochEnded | Evaluated) -> bool:
        return bool(_answer(lambda: self._coordinator.knows.remote(report)))

    @property
    def _has_changed(self) -> bool:
        """Whether the request has changed.

        Also true if the coordinator cannot be reached. The next call finds out which.
        """
        return self._change is None or self._change.done()

    def _hear(self, request: Request) -> Request:
        if request != self._known or self._has_changed:
            self._known = request
            self._change = self._coordinator.changed.remote(request).future()
        return request


def _answer(ask: Callable[[], Any], reply: Any = None) -> Any:
    """Answer of the coordinator, to `reply` if it was asked before.

    It is asked again while Ray is not sure that it lives: its machine may stand still for some time. It knows a report
    that it gets twice.
    """
    while True:
        try:
            return ray.get(ask() if reply is None else reply)
        except ActorUnavailableError:
            reply = None
            time.sleep(_UNAVAILABLE_S)
        except RayActorError:
            os._exit(1)  # it died with the driver: what this orphan saves would harm a run that continues elsewhere
