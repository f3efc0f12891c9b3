"""Parts of a step of the training loop. Pure.

They add up to the step, and come from the ways without making blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from forebay.doctor.findings.measurements import Measurements, spread_of
from forebay.doctor.findings.ways import RoundKind, Way

BATCH = "batch"
"""The part without a way of its own: the cost of a step whatever its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPart:
    """A part of a step, as a share in each round."""

    name: str
    way: Way
    shares: tuple[float, ...]

    @property
    def share(self) -> float:
        """Median over the rounds."""
        return median(self.shares)


def loop_parts(found: Measurements) -> list[LoopPart]:
    """Return the parts of a step from cached blocks.

    The largest is first.

    Each is the difference of two ways in one round, so a load that comes and goes is in both. What does not depend on
    the rows of a step is taken out of these differences, and is a part by itself.
    """
    ways = [way for way in (Way.COMPUTE, Way.COPY, Way.GATHER) if found.of(RoundKind(way=way))]
    fixed = {way: fixed_share_of(found, way) or 0.0 for way in (Way.COMPUTE, Way.GATHER)}
    rounds = [_shares(found, number, ways, fixed) for number in sorted(found.of(RoundKind(way=Way.GATHER)))]
    parts = [
        LoopPart(
            name=str(name), way=Way.GATHER if name == BATCH else Way(name), shares=tuple(each[name] for each in rounds)
        )
        for name in (BATCH, *ways)
    ]
    return sorted(parts, key=lambda part: -part.share)


def fixed_share_of(found: Measurements, way: Way) -> float | None:
    """Return the share of a step that does not depend on rows.

    From steps of two sizes. If only one was measured, the share of time in which a GPU did nothing while its batches
    were there: it waited for the host. None without a GPU.
    """
    small, rows = found.of(RoundKind(way=way, is_small=True)), found.facts.rows
    if not small or found.facts.small_rows >= rows:
        return found.gpu_idle.get(Way.COMPUTE)
    factor = found.facts.small_rows / rows
    large = found.of(RoundKind(way=way))
    ratio = median(small[number].step_s / large[number].step_s for number in small.keys() & large.keys())
    return min(1.0, max(0.0, (ratio - factor) / (1 - factor)))


def is_clearly_larger(part: LoopPart, other: LoopPart, least_gap: float) -> bool:
    """Return whether `part` is larger than `other` beyond noise.

    By more than `least_gap` of itself, and by more than twice the rounds' spread.
    """
    differences = [mine - its for mine, its in zip(part.shares, other.shares, strict=True)]
    return median(differences) > max(least_gap * part.share, 2 * spread_of(differences))


def _shares(found: Measurements, number: int, ways: Sequence[Way], fixed: dict[Way, float]) -> dict[str, float]:
    steps = [found.of(RoundKind(way=way))[number].step_s for way in ways]
    whole, compute = steps[-1], steps[0]
    shares: dict[str, float] = {Way.COMPUTE: (1 - fixed[Way.COMPUTE]) * compute / whole}
    in_compute = fixed[Way.COMPUTE] * compute / whole
    beyond = max(0.0, fixed[Way.GATHER] - in_compute)
    shares[BATCH] = in_compute + beyond
    # Later ways first: a copy and a gather of a few rows are not measured apart.
    for number_of_way in range(len(ways) - 1, 0, -1):
        added = max(0.0, (steps[number_of_way] - steps[number_of_way - 1]) / whole)
        shares[ways[number_of_way]] = max(0.0, added - beyond)
        beyond = max(0.0, beyond - added)
    return shares
