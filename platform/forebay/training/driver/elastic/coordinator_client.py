"""A worker's side of the coordinator of its run."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from forebay.events import Commands, Event


class CoordinatorReporter:
    """`Reporter` that sends events without waiting. Ends this process when the coordinator has died.

    Commands seldom change, and no commit should wait for a round trip. So one call to the coordinator stays pending and
    returns when they change. Use one reporter per attempt: it does not know the commands of an earlier one.
    """

    def __init__(self, coordinator: ActorHandle) -> None:
        self._coordinator = coordinator
        self._last_number: Any = None
        self._known: Commands | None = None
        self._change: Future[None] | None = None

    def report(self, event: Event) -> None:
        self._last_number = self._coordinator.report.remote(event)

    def commands(self) -> Commands:
        if self._known is None or self._has_changed:
            return self._hear(_answer(self._coordinator.commands.remote()))
        self._coordinator.committed.remote()
        return self._known

    def synced_commands(self) -> Commands:
        # Ray may reorder calls of one caller, so this call names the event it comes after.
        number = 0 if self._last_number is None else _answer(self._last_number)
        return self._hear(_answer(self._coordinator.synced_commands.remote(number)))

    @property
    def _has_changed(self) -> bool:
        """Whether the commands have changed or the coordinator cannot be reached. The next call finds out which."""
        return self._change is None or self._change.done()

    def _hear(self, commands: Commands) -> Commands:
        if commands != self._known or self._has_changed:
            self._known = commands
            self._change = self._coordinator.changed.remote(commands).future()
        return commands


def _answer(reply: Any) -> Any:
    try:
        return ray.get(reply)
    except RayActorError:
        os._exit(1)  # it died with the driver: what this orphan saves would harm a run that continues elsewhere
