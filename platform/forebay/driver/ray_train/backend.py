"""Ray Train as a backend of the elastic core: its controller asks for the next world, and workers outlive theirs."""

from __future__ import annotations

from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from forebay.driver.elastic.controller import Controller, RunAborted
from forebay.driver.elastic.coordinator import RunView
from forebay.driver.elastic.phase import Ended, TooManyFailures
from forebay.driver.elastic.pool import WorkerPool
from forebay.driver.ray_train.worker import leave

PAUSING_S = 0.5
"""How long to wait for workers to pause before their health is looked at again."""
LEAVE_S = 5.0
"""How long a worker may take to leave a world that has ended."""


class RayTrainWorlds:
    """The next world of a run, asked for by Ray Train's controller: it starts the world itself."""

    def __init__(
        self, controller: Controller, coordinator: ActorHandle, pool: WorkerPool, *, adopts_survivors: bool
    ) -> None:
        self._controller, self._coordinator, self._pool = controller, coordinator, pool
        self._adopts_survivors = adopts_survivors

    def start(self) -> int | None:
        """The size of a world that can begin now, where none is at work. Raises `RunAborted`."""
        if self._pool.world:
            self._collect(adopt=self._adopts_survivors)
        self._controller.hear(0)
        view = self._controller.view()
        if isinstance(view.phase, Ended):
            raise RunAborted
        return self._begin(view)

    def go_on(self) -> int | None:
        """The size of the world to change to now, where one is at work. Raises `RunAborted`."""
        self._controller.hear(0)
        view = self._controller.view()
        if isinstance(view.phase, Ended):
            # In all other cases Ray Train notices the end itself.
            if isinstance(view.phase.cause, TooManyFailures):
                raise RunAborted
            return None
        if self._pool.world:
            if not view.has_paused and not self._has_paused_now(view):
                return None
            self._collect(adopt=True)
        return self._begin(self._controller.view())

    def close(self) -> None:
        """End all workers."""
        self._pool.close()

    def _has_paused_now(self, view: RunView) -> bool:
        self._controller.step(view)
        return self._controller.is_resizing and ray.get(self._coordinator.all_paused.remote(PAUSING_S))

    def _begin(self, view: RunView) -> int | None:
        names = self._controller.step(view)
        if not names:
            return None
        self._pool.form_world(names)
        return len(names)

    def _collect(self, *, adopt: bool) -> None:
        """Take back the workers of a world that has ended; those that are dead, or do not leave it, are replaced.

        Without `adopt`, all are.
        """
        names = self._controller.end_world()
        leaves = {name: self._pool.actor(name).execute.remote(leave) for name in names} if adopt else {}
        if leaves:
            ray.wait(list(leaves.values()), num_returns=len(leaves), timeout=LEAVE_S)
        # In the same place: until Ray has freed the old one and found another, 0.7 s pass.
        self._pool.replace(name for name in names if name not in leaves or not _has_left(leaves[name]))


def _has_left(answer: Any) -> bool:
    if not ray.wait([answer], timeout=0)[0]:
        return False
    try:
        return bool(ray.get(answer))
    except RayError:
        return False
