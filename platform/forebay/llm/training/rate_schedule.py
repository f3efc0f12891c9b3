"""Learning rate as a function of the share of the training that is done."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "linear", "constant"]
"""Course of the learning rate after its warm-up: down to 0 along a cosine or a line, or constant."""


def rate_factor(share: float, *, warmup: float, schedule: Schedule) -> float:
    """Factor of the highest learning rate, 0 to 1, after `share` of all rows. Rises during the share `warmup`.

    A function of rows: neither another batch nor another world stretches it. For batches of equal size it is that of
    the schedulers of the transformers library.

    >>> [rate_factor(share, warmup=0.5, schedule="linear") for share in (0, 0.25, 0.5, 0.75, 1)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if share < warmup:
        return share / warmup
    left = (1 - share) / (1 - warmup) if warmup < 1 else 0.0
    match schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * (1 - left)))
        case "linear":
            return left
        case "constant":
            return 1.0
