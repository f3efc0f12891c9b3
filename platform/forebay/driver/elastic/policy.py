"""Scaling policy: which workers form the next world. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SETTLE_S = 3.0
"""A requested worker counts as coming for this long: by then a cluster that has room has found it."""
WARM_S = 60.0
"""A placed worker counts as coming for this long; a process that takes longer to start joins by a later resize."""

WorkerState = Literal["requested", "placed", "warm"]
"""Ray was asked for it; a node has room for it and starts its process; it has imported and opened all it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorker:
    """A worker process of the run, or a requested one. `since` is when its state began, on the clock of `PoolView.now`.

    A veteran has trained in this run. A leaving worker is on a node that is about to be taken away.
    """

    name: str
    since: float
    state: WorkerState = "requested"
    node: str = ""
    is_veteran: bool = False
    is_leaving: bool = False

    @property
    def is_warm(self) -> bool:
        return self.state == "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """The workers of a run at one moment. `world` names those that train, by rank; it is empty between two worlds.

    `workers` lists veterans first, by rank. `is_urgent`: a node of the world goes before a successor could be warm.
    """

    workers: Sequence[PoolWorker]
    world: Sequence[str] = ()
    target: int
    min_workers: int
    is_urgent: bool = False
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Number of workers to spawn, names of workers to end, and the next world by rank; empty for no change yet."""

    spawn: int = 0
    dismiss: tuple[str, ...] = ()
    next_world: tuple[str, ...] = ()


def decide(view: PoolView) -> Decision:
    """The next steps towards `view.target` workers.

    Shrinks at once. Grows once every placed worker is warm, in one resize.

    Laws: a world never waits for a worker that cannot start; it never shrinks below `min_workers` by plan; the workers
    that trained longest stay, and come first; a node that is about to go is left as soon as enough workers are
    elsewhere, unless there is time for their successors.
    """
    staying = [worker for worker in view.workers if not worker.is_leaving]
    staying.sort(key=lambda worker: (worker.name not in view.world, not worker.is_warm, worker.state == "requested"))
    kept = staying[: view.target]
    spawn = view.target - len(kept)
    next_world = _next_world(view, kept, has_successors=spawn > 0)
    needed = {*view.world, *next_world, *(worker.name for worker in kept)}
    return Decision(
        spawn=spawn,
        dismiss=tuple(worker.name for worker in view.workers if worker.name not in needed),
        next_world=() if next_world == tuple(view.world) else next_world,
    )


def _next_world(view: PoolView, kept: Sequence[PoolWorker], *, has_successors: bool) -> tuple[str, ...]:
    able = tuple(worker.name for worker in kept if worker.is_warm)
    is_coming = any(_is_coming(worker, view.now) for worker in kept)
    is_complete = len(able) == view.target or not is_coming
    if not view.world:
        return _first_world(view, able, is_complete=is_complete)
    if len(able) < view.min_workers:
        return tuple(view.world)
    if any(worker.is_leaving for worker in view.workers if worker.name in view.world):
        waits = (is_coming or has_successors) and len(able) < view.target and not view.is_urgent
        return tuple(view.world) if waits else able
    stays = tuple(name for name in able if name in view.world) == tuple(view.world)
    return tuple(view.world) if stays and not is_complete else able


def _first_world(view: PoolView, able: tuple[str, ...], *, is_complete: bool) -> tuple[str, ...]:
    """A world where none trains: the survivors of the last one go on at once, a new one gathers all that are coming."""
    if len(able) < view.min_workers:
        # Between two worlds a leaving worker is better than none: the next look replaces it.
        leaving = [worker.name for worker in view.workers if worker.is_leaving and worker.is_warm]
        able += tuple(leaving[: view.min_workers - len(able)])
    if len(able) < view.min_workers:
        return ()
    has_veterans = any(worker.is_veteran for worker in view.workers if worker.name in able)
    return able if has_veterans or is_complete else ()


def _is_coming(worker: PoolWorker, now: float) -> bool:
    patience_s = {"requested": SETTLE_S, "placed": WARM_S, "warm": 0.0}[worker.state]
    return now - worker.since < patience_s
