"""Brings together what the coordinator wants, who is there, and which nodes go: in the controller's process."""

from __future__ import annotations

import random
import time

import ray
from ray.actor import ActorHandle

from forebay.driver.elastic.coordinator import RunView
from forebay.driver.ray_train.scaling import RayDecision, RayPoolView, first_world, next_world
from forebay.ray_cluster.nodes import draining_nodes, in_a_hurry
from forebay.ray_cluster.pool import PlacedWorkerPool

PARKING_S = 0.5
"""How long to wait for workers to part before their health is looked at again."""
PATIENCE_S = 60.0
PAUSE_S = 2.0


class RayTrainRunAborted(Exception):
    """The driver has given up on the run."""


class RayTrainController:
    """Decides on worlds and prepares their workers, but starts none: that is Ray Train's part."""

    def __init__(
        self, coordinator: ActorHandle, seats: PlacedWorkerPool, least: int, *, adopts_survivors: bool
    ) -> None:
        self._coordinator, self._seats, self._least = coordinator, seats, least
        self._adopts_survivors = adopts_survivors
        self._told: set[str] = set()
        self._waits_since = time.monotonic()

    def start(self) -> int | None:
        """Size of a world that can begin now, where there is none.

        Raises `RayTrainRunAborted` or `WorkersCannotStart`.
        """
        if self._seats.seated:
            self._seats.gather(adopt=self._adopts_survivors)
            self._waits_since = time.monotonic()
        view = self._view()
        if view.is_ending:
            raise RayTrainRunAborted
        leaving = draining_nodes()
        self._seats.tend(view.target, leaving)
        workers = first_world(self._standing(view, leaving), self._seats.survivors)
        if workers is None:
            self._give_way()
            return None
        return self._begin(workers, leaving)

    def go_on(self) -> int | None:
        """The size of the world to change to now, where one is at work."""
        view = self._view()
        leaving = draining_nodes()
        self._tell_of(leaving)
        self._seats.tend(view.target, leaving)
        change = next_world(self._standing(view, leaving))
        if view.parked < view.world_size:
            self._have_parted(change, view)
            if change is None or not ray.get(self._coordinator.all_parked.remote(PARKING_S)):
                return None
        self._seats.gather(adopt=True)
        return self._begin(change.workers if change else view.target, leaving)

    def close(self) -> None:
        """End all workers."""
        self._seats.close()

    def _begin(self, wanted: int, leaving: dict[str, float | None]) -> int | None:
        workers = self._seats.seat(wanted, self._least, leaving)
        if workers is not None:
            ray.get(self._coordinator.begin.remote(workers))
        return workers

    def _have_parted(self, change: RayDecision | None, view: RunView) -> None:
        wanted = change.workers if change else None
        if wanted != view.parting:
            ray.get(self._coordinator.part_for.remote(wanted))

    def _tell_of(self, leaving: dict[str, float | None]) -> None:
        for node, at_s in leaving.items():
            workers = sum(seat.node == node for seat in self._seats.seated)
            if workers and node not in self._told:
                self._told.add(node)
                ray.get(self._coordinator.draining.remote(node, workers, at_s))

    def _give_way(self) -> None:
        """Two runs that hold half of what each of them needs would wait for ever: one lets go now and then."""
        if time.monotonic() - self._waits_since < PATIENCE_S or not self._seats.is_half_placed:
            return
        self._seats.release()
        time.sleep(PAUSE_S * (1 + random.random()))  # noqa: S311 - no secret
        self._waits_since = time.monotonic()

    def _standing(self, view: RunView, leaving: dict[str, float | None]) -> RayPoolView:
        left = {seat.node: leaving[seat.node] for seat in self._seats.seated if seat.node in leaving}
        counts = self._seats.counts(leaving)
        return RayPoolView(target=view.target, least=self._least, hurry=in_a_hurry(left), **counts)

    def _view(self) -> RunView:
        view: RunView = ray.get(self._coordinator.view.remote())
        return view
