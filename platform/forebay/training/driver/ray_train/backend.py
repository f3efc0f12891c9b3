"""Ray Train as a backend of the elastic core.

Its controller asks for the next world. Workers outlive their world.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from forebay.training.driver.elastic.controller import Controller, RunAborted
from forebay.training.driver.elastic.coordinator import RunView
from forebay.training.driver.elastic.phase import Ended, TooManyFailures
from forebay.training.driver.elastic.pool import WorkerPool
from forebay.training.driver.ray_train.membership import leave

PAUSING_S = 0.5
"""How long to wait for workers to pause before their health is checked again."""
LEAVE_S = 5.0
"""How long a worker may take to leave a world that has ended."""


class RayTrainWorlds:
    """Decides the next world of a run.

    Ray Train's controller asks for it, and starts it itself.
    """

    def __init__(
        self, controller: Controller, coordinator: ActorHandle, pool: WorkerPool, *, adopts_survivors: bool
    ) -> None:
        self._controller, self._coordinator, self._pool = controller, coordinator, pool
        self._adopts_survivors = adopts_survivors

    def start(self) -> int | None:
        """Return the size of a world that can begin now.

        Called while none trains. None to wait. Raises `RunAborted`.
        """
        if self._pool.world:
            self._collect(adopt=self._adopts_survivors)
        self._controller.hear(0)
        view = self._controller.view()
        if isinstance(view.phase, Ended):
            raise RunAborted
        return self._begin(view)

    def go_on(self) -> int | None:
        """Return the size of the world to change to now.

        Called while a world trains. None for no change. Raises `RunAborted`.
        """
        self._controller.hear(0)
        view = self._controller.view()
        if isinstance(view.phase, Ended):
            # Ray Train notices every other end itself.
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
        """Take back the workers of an ended world.

        Workers that died, or do not leave it in time, are replaced. Without `adopt`, all are replaced.
        """
        names = self._controller.end_world()
        leaves = {name: self._pool.actor(name).execute.remote(leave) for name in names} if adopt else {}
        if leaves:
            ray.wait(list(leaves.values()), num_returns=len(leaves), timeout=LEAVE_S)
        # In the same placement group: Ray needs 0.7 s to free one and place another.
        self._pool.replace(name for name in names if name not in leaves or not _has_left(leaves[name]))


def _has_left(answer: Any) -> bool:
    if not ray.wait([answer], timeout=0)[0]:
        return False
    try:
        return bool(ray.get(answer))
    except RayError:
        return False
