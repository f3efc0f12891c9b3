"""Earlier attempts of a job, for placement.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from forebay.fleet.cluster import Market

COOL_DOWN_S = 600.0
"""Time for which a cluster that turned an attempt away is skipped, for machines of that kind."""
BACK_OFF_S = 15.0
"""Time for which machines are skipped after an attempt failed there. It doubles with each failure, to `COOL_DOWN_S`."""

Pool: TypeAlias = tuple[str, str, Market]
"""Cluster, SKU and market."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHistory:
    """Where earlier attempts were refused, failed, and ran.

    Times of the placing clock. `ran` is by cluster.
    """

    turned_away: Mapping[Pool, float] = field(default_factory=dict)
    failed: Mapping[Pool, tuple[float, ...]] = field(default_factory=dict)
    ran: Mapping[str, float] = field(default_factory=dict)

    def with_failure(self, pool: Pool, now: float) -> PlacementHistory:
        """History after an attempt failed on a pool."""
        return replace(self, failed={**self.failed, pool: (*self.failed.get(pool, ()), now)})

    @property
    def failed_at(self) -> float:
        """Time of the newest failure."""
        return max((times[-1] for times in self.failed.values()), default=-math.inf)

    def refusal(self, pool: Pool, now: float) -> str | None:
        """Return why a pool is refused now, or None."""
        away = self.turned_away.get(pool)
        if away is not None and now - away < COOL_DOWN_S:
            return f"turned an attempt away {now - away:.0f} s ago"
        failures = self.failed.get(pool, ())
        if failures and now - failures[-1] < min(BACK_OFF_S * 2.0 ** min(len(failures) - 1, 60), COOL_DOWN_S):
            return f"had an attempt that failed {now - failures[-1]:.0f} s ago"
        return None

    def is_avoided(self, pool: Pool, now: float) -> bool:
        """Whether an attempt failed on a pool lately.

        Another pool with room is better.
        """
        failures = self.failed.get(pool, ())
        return bool(failures) and now - failures[-1] < COOL_DOWN_S
