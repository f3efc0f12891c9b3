"""Splits of series by step, share, time or entity.

A window belongs to the part of its targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from forebay.data.plan.permute import Ints
from forebay.data.windows.line import StepLine
from forebay.errors import InvalidOption, whole_number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetBounds:
    """Steps of each entity that may be targets.

    One part of a split.

    Attributes:
        low: First target step of each entity, counted from its first step, int64 [entities].
        high: End of the target steps, int64 [entities]. Not above `low`: no target.
        own_context: Whether windows look back on steps from `low` only.
    """

    low: Ints
    high: Ints
    own_context: bool = False

    @classmethod
    def all_of(cls, line: StepLine) -> TargetBounds:
        """All steps of all entities."""
        steps = np.diff(line.entities)
        return cls(low=np.zeros_like(steps), high=steps)


def step_cuts(line: StepLine, steps: Sequence[int]) -> Ints:
    """Cut each entity at `steps`, int64 [entities, cuts].

    Raises `InvalidOption` unless they ascend.
    """
    cuts = [whole_number("steps", step, least=1) for step in steps]
    if not cuts or cuts != sorted(set(cuts)):
        raise InvalidOption(f"steps={tuple(steps)!r}: give ascending steps, such as (8640, 11520).", steps=tuple(steps))
    return np.tile(np.array(cuts, dtype=np.int64), (len(line.entities) - 1, 1))


def fraction_cuts(line: StepLine, fractions: Sequence[float]) -> Ints:
    """Cut each entity's steps by share, int64 [entities, cuts].

    The rest is the last part. Raises `InvalidOption` unless each is above 0 and their sum is below 1.
    """
    # Of the decimal text: 0.6 + 0.2 is 0.8, where the sum of the floats is above it.
    try:
        shares = [Fraction(str(fraction)) for fraction in fractions]
    except ValueError:
        shares = []
    if not shares or min(shares) <= 0 or sum(shares) >= 1:
        raise InvalidOption(
            f"fractions={tuple(fractions)!r}: give the shares of all parts but the last, each above 0 and together "
            "below 1, such as (0.6, 0.2).",
            fractions=tuple(fractions),
        )
    lengths = np.diff(line.entities).tolist()
    ends = [sum(shares[: number + 1]) for number in range(len(shares))]
    return np.array([[int(steps * end) for end in ends] for steps in lengths], dtype=np.int64).reshape(-1, len(ends))


def parts_of_cuts(line: StepLine, cuts: Ints, *, gap: int = 0, own_context: bool = False) -> tuple[TargetBounds, ...]:
    """Create the parts between `cuts`.

    `cuts` is int64 [entities, cuts] in ascending order. Each part but the last ends `gap` steps earlier. The gap is
    taken from the earlier part, so that a test set does not depend on it.
    """
    whole_number("gap", gap)
    steps = np.diff(line.entities)
    edges = np.concatenate([np.zeros_like(cuts[:, :1]), np.minimum(cuts, steps[:, None]), steps[:, None]], axis=1)
    ends = edges[:, 1:].copy()
    ends[:, :-1] = np.maximum(ends[:, :-1] - gap, 0)
    return tuple(
        TargetBounds(low=edges[:, part].copy(), high=ends[:, part].copy(), own_context=own_context)
        for part in range(ends.shape[1])
    )


def parts_of_entities(line: StepLine, is_held_out: NDArray[np.bool_]) -> tuple[TargetBounds, TargetBounds]:
    """Split into a part without and with held-out entities."""
    steps = np.diff(line.entities)
    none = np.zeros_like(steps)
    return (
        TargetBounds(low=none, high=np.where(is_held_out, none, steps)),
        TargetBounds(low=none, high=np.where(is_held_out, steps, none)),
    )
