"""Verdict of an examination: the wall at which a job stands, and the next one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from forebay.doctor.findings.measurements import Measurements
from forebay.doctor.findings.ways import RoundKind, Way

LEAST_GAP = 0.10
"""Two ways that are closer than this share, or than twice the spread of their rounds, are one wall."""
TIE = 0.03
FIXED_SHARE = 0.5
"""From this share of a step that does not depend on its rows, the size of the batch is the wall."""
_OWN_WORK = {Way.GATHER: "gather_s", Way.TRANSFORM: "produce_s", Way.NETWORK: "read_s"}
"""Work of a stage that runs beside the training: the numbers of a `Round` with its seconds."""
BATCH, LOCK = "batch", "lock"
"""Walls that are no way of their own: the cost of each step whatever its rows, and a lock in the user's functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """RoundKind of the job that limits it.

    Attributes:
        name: A `Way`, `BATCH` or `LOCK`.
        way: The way in which it was found.
        step_s: Seconds of a step at this wall.
        tied_with: Name of a wall that cannot be separated from this one, and by how much it differs at most.
    """

    name: str
    way: Way
    step_s: float
    tied_with: str | None = None
    tied_within: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WallVerdict:
    """Walls of the first epoch, and of later epochs from the cache (None without such).

    `next_wall` is where the first epoch stands once `wall` is out of the way.
    """

    wall: Wall
    next_wall: Wall | None
    cached: Wall


def verdict_of(found: Measurements) -> WallVerdict:
    """Find the walls."""
    ways = [way for way in Way if found.of(RoundKind(way=way))]
    wall = _wall(found, ways)
    below = ways[: ways.index(wall.way)]
    cached = _wall(found, [way for way in ways if way in (Way.COMPUTE, Way.COPY, Way.GATHER)])
    return WallVerdict(wall=wall, next_wall=_next(found, wall, below), cached=cached)


def ratio_of(found: Measurements, way: Way, other: Way) -> tuple[float, float]:
    """Median over the rounds of a step's time by `way`, divided by that of `other`, and the spread of the rounds.

    Both are of one round, so a load that comes and goes is in both.
    """
    upper, lower = found.step_s(RoundKind(way=way)), found.step_s(RoundKind(way=other))
    ratios = [upper[number] / lower[number] for number in sorted(upper.keys() & lower.keys())]
    return median(ratios), _spread(ratios)


def step_s_of(found: Measurements, way: Way) -> float:
    """Median seconds of a step in a way, at least those of the ways before it."""
    known = [earlier for earlier in Way if found.of(RoundKind(way=earlier))]
    before = known[: known.index(way) + 1]
    return max(median(found.step_s(RoundKind(way=each)).values()) for each in before)


def fixed_share_of(found: Measurements, way: Way) -> float | None:
    """Share of a step that does not depend on its rows, from steps of two sizes. None if only one was measured."""
    small, rows = found.of(RoundKind(way=way, is_small=True)), found.facts.rows
    if not small or found.facts.small_rows >= rows:
        return None
    factor = found.facts.small_rows / rows
    large = found.of(RoundKind(way=way))
    ratio = median(small[number].step_s / large[number].step_s for number in small.keys() & large.keys())
    return min(1.0, max(0.0, (ratio - factor) / (1 - factor)))


def _wall(found: Measurements, ways: Sequence[Way]) -> Wall:
    """The first way that takes as long as the last one."""
    top = ways[-1]
    for way in ways:
        ratio, spread = ratio_of(found, top, way)
        if ratio <= 1 + max(LEAST_GAP, 2 * spread):
            break
    tied = _latest(found, way, ways) if ratio > 1 + TIE else None
    return Wall(
        name=_name(found, way),
        way=way,
        step_s=step_s_of(found, top),
        tied_with=None if tied is None else _name(found, tied),
        tied_within=ratio - 1 if tied is not None else 0.0,
    )


def _latest(found: Measurements, way: Way, ways: Sequence[Way]) -> Way | None:
    """The way after `way` that adds most to it."""
    later = ways[ways.index(way) + 1 :]
    steps = [step_s_of(found, each) - step_s_of(found, ways[ways.index(each) - 1]) for each in later]
    return later[steps.index(max(steps))] if later else None


def _next(found: Measurements, wall: Wall, below: Sequence[Way]) -> Wall | None:
    """Wall once `wall` is out of the way: of the ways below it, or the stage above it that takes longest."""
    candidates = [_wall(found, below)] if below else []
    for way, name in _OWN_WORK.items():
        own = found.median_of(RoundKind(way=way), name)
        if list(Way).index(way) > list(Way).index(wall.way) and own > 0:
            candidates.append(Wall(name=_name(found, way), way=way, step_s=own))
    if not candidates:
        return None
    most = max(candidate.step_s for candidate in candidates)
    return next(each for each in candidates if each.step_s >= most / (1 + LEAST_GAP))


def _name(found: Measurements, way: Way) -> str:
    if way in (Way.COMPUTE, Way.GATHER) and (fixed_share_of(found, way) or 0.0) >= FIXED_SHARE:
        return BATCH
    contention = found.contention
    if way is Way.TRANSFORM and contention and (contention.with_itself or contention.with_training):
        return LOCK
    return str(way)


def _spread(values: Sequence[float]) -> float:
    """Median distance from the median, as a share of it."""
    middle = median(values)
    return median(abs(value - middle) for value in values) / middle
