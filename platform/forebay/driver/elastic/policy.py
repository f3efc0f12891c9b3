"""Who shall be in a run's world: decided from who is there, without asking or starting anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SETTLE_S = 3.0
"""How long a worker that was asked for counts as on its way: by then a cluster that has room has found it."""
WARM_S = 120.0
"""How long the others wait for one that the cluster has room for."""

State = Literal["asked", "placed", "warm"]
"""Ray was asked for it; a node has room for it, and starts it; it has imported and opened all it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorker:
    """A worker process of the run, or one to come. `asked_at` is in seconds of the clock that `PoolView.now` is of.

    A veteran has trained in this run; one that is leaving is on a node that is about to be taken away.
    """

    name: str
    asked_at: float
    state: State = "asked"
    node: str = ""
    is_veteran: bool = False
    is_leaving: bool = False

    @property
    def is_warm(self) -> bool:
        return self.state == "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """How things stand. `crew`: veterans first, by rank; `world`: who trains now, by rank, empty between two worlds."""

    crew: Sequence[PoolWorker]
    world: Sequence[str] = ()
    target: int
    min_workers: int
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do: workers to ask for, workers to end, and the world to train in next, by rank; empty for none yet."""

    ask_for: int = 0
    dismiss: tuple[str, ...] = ()
    next_world: tuple[str, ...] = ()


def decide(view: PoolView) -> Decision:
    """What to do next.

    Laws: a world never waits for a worker that cannot start; it never shrinks below `min_workers` by plan; who has
    trained longest stays, and comes first; workers that come at about the same time join in one change.
    """
    staying = [member for member in view.crew if not member.is_leaving]
    staying.sort(key=lambda member: (member.name not in view.world, not member.is_warm))
    kept = staying[: view.target]
    next_world = _next_world(view, kept)
    needed = {*view.world, *next_world, *(member.name for member in kept)}
    return Decision(
        ask_for=view.target - len(kept),
        dismiss=tuple(member.name for member in view.crew if member.name not in needed),
        next_world=() if next_world == tuple(view.world) else next_world,
    )


def _next_world(view: PoolView, kept: Sequence[PoolWorker]) -> tuple[str, ...]:
    able = tuple(member.name for member in kept if member.is_warm)
    stay = tuple(name for name in able if name in view.world)
    is_complete = len(able) == view.target or not any(_is_coming(member, view.now) for member in kept)
    if view.world and stay == tuple(view.world) and not is_complete:
        return tuple(view.world)
    if len(able) < view.min_workers:
        return tuple(view.world)
    # Those who are left of a world go on at once; a first one, or one after all were lost, gathers whom it can.
    has_veterans = any(member.is_warm and member.is_veteran for member in kept)
    return able if view.world or has_veterans or is_complete else ()


def _is_coming(member: PoolWorker, now: float) -> bool:
    patience_s = {"asked": SETTLE_S, "placed": WARM_S, "warm": 0.0}[member.state]
    return now - member.asked_at < patience_s
