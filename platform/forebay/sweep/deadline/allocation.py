"""Dealing a fixed number of workers, the atoms of a sweep, to its trials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Policy = Literal["top", "uniform", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemand:
    """A trial that trains, or is about to: its bounds, and what is expected of it, higher is better."""

    trial_id: str
    min_workers: int = 1
    max_workers: int
    promise: float = 0.0


def allot(claims: Sequence[WorkerDemand], atoms: int, policy: Policy = "uniform") -> dict[str, int]:
    """How many workers each trial may have; in sum never more than `atoms`, each within its bounds, or 0.

    Each gets its minimum, in the order given, as long as atoms last: the first that cannot get it, and all after it,
    get none. What is left goes out one by one: `top` gives the most promising trial all it can take, then the next;
    `uniform` gives to whoever has the fewest; `softmax` to whoever has the fewest for its weight, which grows
    exponentially with its promise. One more atom never takes one from anybody who had its minimum, as long as all
    minima fit.
    """
    shares, left = dict.fromkeys((claim.trial_id for claim in claims), 0), atoms
    served: list[WorkerDemand] = []
    for claim in claims:
        if claim.min_workers > left:
            break
        shares[claim.trial_id] = claim.min_workers
        left -= claim.min_workers
        served.append(claim)
    weights = _weights(served, policy)
    for _ in range(left):
        open_claims = [claim for claim in served if shares[claim.trial_id] < claim.max_workers]
        if not open_claims:
            break
        if policy == "top":
            chosen = max(open_claims, key=lambda claim: claim.promise)
        else:
            # Whoever is furthest below its part, one at a time (D'Hondt): larger remainders would take an atom away
            # from one trial when another atom comes.
            chosen = max(open_claims, key=lambda claim: weights[claim.trial_id] / (shares[claim.trial_id] + 1))
        shares[chosen.trial_id] += 1
    return shares


def _weights(claims: Sequence[WorkerDemand], policy: Policy) -> dict[str, float]:
    """Softmax of the promises in units of their spread, so that a metric's scale does not matter."""
    if policy != "softmax":
        return {claim.trial_id: 1.0 for claim in claims}
    known = [claim.promise for claim in claims if math.isfinite(claim.promise)]
    best = max(known, default=0.0)
    spread = statistics.pstdev(known) if len(known) > 1 else 0.0
    return {claim.trial_id: _weight(claim.promise, best, spread or 1.0) for claim in claims}


def _weight(promise: float, best: float, spread: float) -> float:
    return math.exp(max((promise - best) / spread, -50.0)) if math.isfinite(promise) else math.exp(-50.0)
