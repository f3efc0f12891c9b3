"""Scaling policy: which workers form the next world. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SETTLE_S = 3.0
"""A requested worker counts as coming for this long. A cluster that has room has placed it by then."""
WARM_S = 60.0
"""A placed worker counts as coming for this long. A process that takes longer joins by a later resize."""

WorkerState = Literal["requested", "placed", "warm"]
"""`requested` from Ray. `placed` on a node, its process is starting. `warm`: it has imported and opened all it
needs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorker:
    """Worker process of the run, or a request for one.

    `since` is when its state began, on the clock of `PoolView.now`. A veteran has trained in this run. A leaving worker
    is on a node that will be taken away.
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
    """Workers of a run at one moment.

    `world` names those that train, by rank. It is empty between two worlds. `workers` lists veterans first, by rank.
    `is_urgent`: a node of the world will be taken away before a replacement could be warm.
    """

    workers: Sequence[PoolWorker]
    world: Sequence[str] = ()
    target: int
    min_workers: int
    is_urgent: bool = False
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Workers to spawn and to end, and the next world.

    `spawn` is a number, `dismiss` has names, `next_world` names by rank. Empty fields mean no change.
    """

    spawn: int = 0
    dismiss: tuple[str, ...] = ()
    next_world: tuple[str, ...] = ()


def decide(view: PoolView) -> Decision:
    """Next steps towards `view.target` workers.

    Shrinks at once. Grows once every placed worker is warm, in one resize.

    Laws:
    - A world never waits for a worker that cannot start.
    - A resize never shrinks a world below `min_workers`.
    - The workers that trained longest stay, and get the first ranks.
    - A world leaves a draining node as soon as enough workers are elsewhere. If there is time, it waits for
      replacements.
    """
    at_work = frozenset(view.world)
    staying = [worker for worker in view.workers if not worker.is_leaving]
    staying.sort(key=lambda worker: (worker.name not in at_work, not worker.is_warm, worker.state == "requested"))
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
    at_work = frozenset(view.world)
    if any(worker.is_leaving and worker.name in at_work for worker in view.workers):
        waits = (is_coming or has_successors) and len(able) < view.target and not view.is_urgent
        return tuple(view.world) if waits else able
    stays = tuple(name for name in able if name in at_work) == tuple(view.world)
    return tuple(view.world) if stays and not is_complete else able


def _first_world(view: PoolView, able: tuple[str, ...], *, is_complete: bool) -> tuple[str, ...]:
    """Return the world to begin when none trains.

    Survivors of the last world continue at once. A new world waits for all that are coming.
    """
    if len(able) < view.min_workers:
        # Between two worlds a leaving worker is better than none: the next decision replaces it.
        leaving = [worker.name for worker in view.workers if worker.is_leaving and worker.is_warm]
        able += tuple(leaving[: view.min_workers - len(able)])
    if len(able) < view.min_workers:
        return ()
    chosen = frozenset(able)
    has_veterans = any(worker.is_veteran and worker.name in chosen for worker in view.workers)
    return able if has_veterans or is_complete else ()


def _is_coming(worker: PoolWorker, now: float) -> bool:
    patience_s = {"requested": SETTLE_S, "placed": WARM_S, "warm": 0.0}[worker.state]
    return now - worker.since < patience_s
