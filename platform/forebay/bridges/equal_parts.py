"""Check for equal rows per rank in every batch.

For training loops that do not use `batch.weight`.
"""

from __future__ import annotations

import numpy as np

from forebay.data.plan.order import Last, Order
from forebay.data.plan.plan import Plan
from forebay.data.plan.sampled import Sampled
from forebay.errors import InvalidOption
from forebay.world import World


def validate_equal_parts(plan: Order, *, global_batch: int, last: Last, world_size: int) -> None:
    """Check every batch of any epoch.

    A loop that averages the mean losses of its ranks is exact only for parts of equal size.

    Raises:
        InvalidOption: Some batch has unequal parts. The text has the values that make them equal.
    """
    given = f"this loop averages over ranks without batch.weight, so all {world_size} ranks must get equally many rows"
    if world_size == 1:
        return
    if last != "drop":
        raise InvalidOption(
            f'last={last!r} makes parts of two sizes: {given}. Give last="drop", or train by fb.run.', last=last
        )
    if not isinstance(plan, (Plan, Sampled)):
        raise InvalidOption(
            f"plan={plan!r:.100}: {given}, and the parts of a mixture differ by some rows. Train mixtures by fb.run, "
            "or with one rank."
        )
    if not has_equal_parts(plan, global_batch=global_batch, world_size=world_size):
        lanes = -(-plan.lanes // world_size) * world_size
        rows = -(-global_batch // lanes) * lanes
        change = "" if lanes == plan.lanes else f" and fb.build_plan(..., lanes={lanes}), which changes the order"
        raise InvalidOption(
            f"global_batch={global_batch} over {plan.lanes} lanes gives {world_size} ranks parts of different sizes: "
            f"{given}. Give global_batch={rows}{change}.",
            global_batch=global_batch,
            lanes=lanes,
            fitting_batch=rows,
        )


def has_equal_parts(plan: Order, *, global_batch: int, world_size: int) -> bool:
    """Return whether `global_batch` rows split evenly among the ranks.

    Each run of `global_batch` positions has equally many rows of each rank.

    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(lanes=4, owned_lanes=lambda world: [world.rank, world.rank + 2])
    >>> [has_equal_parts(plan, global_batch=rows, world_size=2) for rows in (3, 4, 6)]
    [False, True, True]
    """
    if plan.lanes % world_size:
        return False
    owner = np.empty(plan.lanes, dtype=np.int64)
    for rank in range(world_size):
        owner[list(plan.owned_lanes(World(rank=rank, size=world_size)))] = rank
    # Positions go round the lanes, so full rounds are equal. The rest begins at any lane.
    rest = global_batch % plan.lanes
    counts = np.bincount(owner[:rest], minlength=world_size)
    return bool((counts == counts[0]).all() and np.array_equal(owner, np.roll(owner, -rest)))
