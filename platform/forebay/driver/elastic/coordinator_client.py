"""How a worker process on Ray speaks with the coordinator of its run."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from forebay.events import Commands, Event


class CoordinatorReporter:
    """A `Reporter` whose events are sent off without waiting. Ends this process when the coordinator is gone.

    Orders seldom change, and no commit should wait for hearing so: the coordinator rings a bell when they do. One per
    attempt: what was asked of a former one is not known to it.
    """

    def __init__(self, coordinator: ActorHandle) -> None:
        self._coordinator = coordinator
        self._last_number: Any = None
        self._known: Commands | None = None
        self._bell: Future[None] | None = None

    def report(self, event: Event) -> None:
        self._last_number = self._coordinator.report.remote(event)

    def orders(self) -> Commands:
        if self._known is None or self._has_rung:
            return self._hear(_answer(self._coordinator.orders.remote()))
        self._coordinator.committed.remote()
        return self._known

    def settled_orders(self) -> Commands:
        # Calls of one caller may overtake each other, so that this one says which events it comes after.
        number = 0 if self._last_number is None else _answer(self._last_number)
        return self._hear(_answer(self._coordinator.settled_orders.remote(number)))

    @property
    def _has_rung(self) -> bool:
        """Whether orders have changed, or the coordinator cannot be reached: then asking it tells."""
        return self._bell is None or self._bell.done()

    def _hear(self, orders: Commands) -> Commands:
        if orders != self._known or self._has_rung:
            self._known = orders
            self._bell = self._coordinator.changed.remote(orders).future()
        return orders


def _answer(reply: Any) -> Any:
    try:
        return ray.get(reply)
    except RayActorError:
        os._exit(1)  # gone with the driver: the run may go on elsewhere, and what this orphan saves would hurt it
