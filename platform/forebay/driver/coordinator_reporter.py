"""How a worker process on Ray speaks with the coordinator of its run."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from forebay.train.events import Event
from forebay.train.orders import Orders


class CoordinatorReporter:
    """A `Reporter` whose events are sent off without waiting. Ends this process when the coordinator is gone."""

    def __init__(self, coordinator: ActorHandle) -> None:
        self._coordinator = coordinator
        self._last_number: Any = None

    def report(self, event: Event) -> None:
        self._last_number = self._coordinator.report.remote(event)

    def orders(self) -> Orders:
        orders: Orders = _answer(self._coordinator.orders.remote())
        return orders

    def settled_orders(self) -> Orders:
        # Calls of one caller may overtake each other, so that this one says which events it comes after.
        number = 0 if self._last_number is None else _answer(self._last_number)
        orders: Orders = _answer(self._coordinator.settled_orders.remote(number))
        return orders


def _answer(reply: Any) -> Any:
    try:
        return ray.get(reply)
    except RayActorError:
        os._exit(1)  # gone with the driver: the run may go on elsewhere, and what this orphan saves would hurt it
