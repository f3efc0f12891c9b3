"""The worker processes of a run on Ray: each in a place of its own in the cluster, warmed up before it is needed.

A place is a placement group of one bundle. One group for all would have to be given up and asked for anew at every
change of size, and every process with it. A place that cannot be had yet stays asked for: that is the demand which
Ray's autoscaler sees, while training goes on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from forebay.ray_cluster.placement import new_place

log = logging.getLogger(__name__)

NEAR_S = 60.0
"""A process that takes longer to start than this is not waited for any more."""
LEAVE_S = 5.0
"""How long a worker may take to leave a world that has ended."""
RETRY_S = 1.0
MOST_FAILED_STARTS = 5


@dataclass(frozen=True, slots=True)
class SpawnedWorker:
    """A worker process as it was asked for: its actor, and what to wait for until it is warm."""

    actor: ActorHandle
    warm: Any
    metadata: Any


Spawn = Callable[[PlacementGroup], SpawnedWorker]
"""Has a worker process started in a place, and warmed up."""


class WorkersCannotStart(Exception):
    """Worker processes failed while they started, again and again, and there is none to train with."""


class PlacedWorker:
    """One place in the cluster, and the worker process in it."""

    def __init__(self, place: PlacementGroup, hire: Spawn) -> None:
        self.place, self._hire = place, hire
        self._placed_at: float | None = None
        self.node: str | None = None
        self.metadata: Any = None
        self.survivor = False
        self._fill()

    @property
    def is_warm(self) -> bool:
        return self.metadata is not None

    @property
    def is_placed(self) -> bool:
        """Whether the cluster has given it its place."""
        return self._placed_at is not None

    @property
    def is_near(self) -> bool:
        """Whether its process is about to be warm: it has its place, and not for long."""
        return self._placed_at is not None and time.monotonic() - self._placed_at < NEAR_S

    @property
    def actor(self) -> ActorHandle:
        return self._hired.actor

    def refill(self) -> None:
        """Start another process in the same place, which may have moved to another node with the loss of its own."""
        ray.kill(self.actor)
        self._placed_at = self.node = self.metadata = None
        self.survivor = False
        self._fill()

    def look(self) -> None:
        """Find out how far its process has come. Raises `RayError` where it has failed."""
        if self.is_warm:
            return
        if ray.wait([self._hired.warm], timeout=0)[0]:
            ray.get(self._hired.warm)
            self.metadata = ray.get(self._hired.metadata)
            self.node = self.metadata.node_id
        elif self._placed_at is None and placement_group_table(self.place).get("state") == "CREATED":
            self._placed_at = time.monotonic()

    def give_up(self) -> None:
        """End its process, and free its place."""
        ray.kill(self.actor)
        remove_placement_group(self.place)

    def _fill(self) -> None:
        self._hired = self._hire(self.place)


class PlacedWorkerPool:
    """All seats of one run: those of the present world, by rank, and those that are to come."""

    def __init__(self, hire: Spawn, bundle: Mapping[str, float], run: str, leave: Callable[[], bool]) -> None:
        self._hire, self._bundle, self._run, self._leave = hire, dict(bundle), run, leave
        self.seated: list[PlacedWorker] = []
        self.coming: list[PlacedWorker] = []
        self._failed_starts, self._retry_at = 0, 0.0

    def tend(self, wanted: int, leaving: Collection[str]) -> None:
        """See to it that `wanted` workers are seated or coming, none of the latter on a node that is `leaving`.

        Raises `WorkersCannotStart`.
        """
        self._look_at_coming()
        self._drop([seat for seat in self.coming if seat.node in leaving])
        missing = wanted - len(self.coming) - sum(seat.node not in leaving for seat in self.seated)
        if missing < 0:
            # Of those that may go, the coldest and latest.
            by_worth = sorted(self.coming, key=lambda seat: (not seat.is_warm, not seat.is_near))
            self._drop(by_worth[missing:] if -missing < len(by_worth) else by_worth)
        elif time.monotonic() >= self._retry_at:
            self.coming += [self._open() for _ in range(missing)]

    def counts(self, leaving: Collection[str]) -> dict[str, int]:
        """What a `Standing` says of them."""
        return {
            "size": len(self.seated),
            "staying": sum(seat.node not in leaving for seat in self.seated),
            "ready": sum(seat.is_warm for seat in self.coming),
            "nearing": sum(seat.is_near and not seat.is_warm for seat in self.coming),
        }

    @property
    def is_half_placed(self) -> bool:
        """Whether some have a place in the cluster, and others wait for one."""
        return len({seat.is_warm or seat.is_placed for seat in self.coming}) == 2

    @property
    def survivors(self) -> int:
        """How many of the coming were in the last world."""
        return sum(seat.survivor for seat in self.coming)

    def gather(self, *, adopt: bool) -> None:
        """Take back the workers of a world that has ended; those that are gone, or do not let go, are replaced.

        Without `adopt`, all are.
        """
        ended, self.seated = self.seated, []
        leaves = {seat: seat.actor.execute.remote(self._leave) for seat in ended} if adopt else {}
        if leaves:
            ray.wait(list(leaves.values()), num_returns=len(leaves), timeout=LEAVE_S)
        for seat in ended:
            seat.survivor = seat in leaves and _has_left(leaves[seat])
            if not seat.survivor:
                seat.refill()
        self.coming = ended + self.coming

    def seat(self, workers: int, least: int, leaving: Collection[str]) -> int | None:
        """Make the next world of up to `workers` that are warm, those of the last world first; how many it has.

        Only where there are not even `least` others, some are on nodes that are `leaving`. None where that is too few.
        """
        warm = sorted((seat for seat in self.coming if seat.is_warm), key=lambda seat: seat.node in leaving)
        staying = sum(seat.node not in leaving for seat in warm)
        chosen = warm[: min(workers, max(staying, least))]
        if len(chosen) < least:
            return None
        self.coming = [seat for seat in self.coming if seat not in chosen]
        self.seated = chosen
        return len(chosen)

    def release(self) -> None:
        """Give up every place: another run may be waiting for it, as this one waits for more."""
        self._drop(self.coming)

    def close(self) -> None:
        """End all processes."""
        self._drop([*self.seated, *self.coming])
        self.seated = []

    def _open(self) -> PlacedWorker:
        return PlacedWorker(new_place(self._run, self._bundle), self._hire)

    def _look_at_coming(self) -> None:
        for seat in self.coming:
            was_warm = seat.is_warm
            try:
                seat.look()
            except RayError as error:
                self._start_failed(seat, error)
            else:
                self._failed_starts = 0 if seat.is_warm and not was_warm else self._failed_starts

    def _start_failed(self, seat: PlacedWorker, error: RayError) -> None:
        self._failed_starts += 1
        log.warning("A worker process failed while it started: %s", error)
        if self._failed_starts >= MOST_FAILED_STARTS and not self.seated and not any(s.is_warm for s in self.coming):
            raise WorkersCannotStart(f"{self._failed_starts} worker processes failed while they started") from error
        # Not at once: what fails within milliseconds would be tried all the time.
        self._retry_at = time.monotonic() + RETRY_S * self._failed_starts
        self._drop([seat])

    def _drop(self, seats: Iterable[PlacedWorker]) -> None:
        gone = list(seats)
        for seat in gone:
            seat.give_up()
        self.coming = [seat for seat in self.coming if seat not in gone]


def _has_left(answer: Any) -> bool:
    if not ray.wait([answer], timeout=0)[0]:
        return False
    try:
        return bool(ray.get(answer))
    except RayError:
        return False
