"""When a run on Ray changes its world, and to which size: decided from counts alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPoolView:
    """The workers of a run, counted.

    Of the present world of `size` ranks, `staying` are on nodes that stay. Beside it, `ready` wait, warm, to be taken
    in, and `nearing` have their place in the cluster and will be warm within seconds. Others have no place yet: nobody
    waits for those. `hurry`: a node is about to go, and there is no time to wait for anybody.
    """

    target: int
    least: int
    size: int = 0
    staying: int = 0
    ready: int = 0
    nearing: int = 0
    hurry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RayDecision:
    """Workers shall part, to go on as a world of `workers`; with as many as before where some leave their node."""

    workers: int


def next_world(now: RayPoolView) -> RayDecision | None:
    """What a world at work should part for, or None to train on.

    Shrinking needs nobody, growing waits until the next workers are warm, all that are near at once. A node that is
    about to go is left as soon as enough workers for the run are elsewhere, unless there is time for their successors.
    """
    reachable = min(now.target, now.staying + now.ready)
    if now.staying < now.size:
        if reachable < now.least or (now.nearing and reachable < now.target and not now.hurry):
            return None
        return RayDecision(workers=reachable)
    if now.target < now.size:
        return RayDecision(workers=now.target)
    if reachable > now.size and not now.nearing:
        return RayDecision(workers=reachable)
    return None


def first_world(now: RayPoolView, survivors: int) -> int | None:
    """With how many of the `ready` workers to begin, at the start or after a failure; None to wait for more.

    `survivors` of them were in the world that failed. Where these are enough they go on at once, and the others follow
    by a resize; else the first world takes in all that are near.
    """
    workers = min(now.target, now.ready)
    if workers < now.least:
        return None
    if workers == now.target or survivors >= now.least or not now.nearing:
        return workers
    return None
