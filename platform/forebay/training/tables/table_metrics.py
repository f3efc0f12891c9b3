"""Metrics of tables between two checkpoints.

Lookups, bytes, trained rows, their balance over ranks, collisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.training.collectives.collective import Collective
from forebay.training.state.metric import Metric, WeightedMean
from forebay.training.tables.owned_rows import WEIGHT
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.vocabulary.open_rows import OpenRows

_Counts = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Counts of one table, on one or all ranks.

    `hottest` is of the last lookup, which had `last` ids.
    """

    steps: float
    lookups: float
    unique: float
    touched: float
    bad: float
    sent_bytes: float
    admitted: float
    evicted: float
    shared: float
    hottest: float
    last: float
    occupied: float


class TableMetrics:
    """Metrics of all tables of a model.

    `shared` returns the tables by their path in the model.

    All ranks call `pop` together: it has one small exchange.
    """

    def __init__(self, shared: Callable[[], Mapping[str, SharedRows | OpenRows]], collective: Collective) -> None:
        self._shared, self._collective = shared, collective
        self._before: dict[str, _Counts] = {}

    def pop(self) -> dict[str, Metric]:
        """Return the metrics of all ranks since the last call."""
        world, shared = self._collective.world, self._shared()
        counts = np.array([self._counted(name, rows) for name, rows in shared.items()])
        by_rank = np.zeros((len(shared), world.size))
        by_rank[:, world.rank] = counts[:, 3]
        both = self._collective.all_reduce(np.concatenate([counts, by_rank], axis=1))
        found: dict[str, Metric] = {}
        width = counts.shape[1]
        for (name, rows), row in zip(shared.items(), both, strict=True):
            found |= {f"tables/{name}/{key}": value for key, value in _metrics(rows, row[:width], row[width:]).items()}
        return found

    def _counted(self, name: str, shared: SharedRows | OpenRows) -> _Counts:
        """Return this rank's `_Numbers` since the last call."""
        use = shared.use
        found = [use.steps, use.lookups, use.unique, use.touched, use.bad, use.sent_bytes]
        totals = np.array([*found, use.admitted, use.evicted, use.shared], np.float64)
        since = totals - self._before.get(name, np.zeros_like(totals))
        self._before[name] = totals
        hottest, last = _hottest(use.last_ids)
        use.last_ids = None
        return np.array([*since, hottest, last, _occupied(shared)])  # the fields of _Numbers


def estimated_collisions(occupied: float, buckets: int) -> float:
    """Estimate the collisions among `buckets`.

    The expected number of distinct values beyond the `occupied` buckets.

    It is the estimate of linear counting (Whang et al. 1990), without a list of values. Some bucket must be free.

    >>> round(estimated_collisions(632.3, 1000))
    368
    """
    return max(math.log1p(-occupied / buckets) / math.log1p(-1 / buckets) - occupied, 0.0)


def _metrics(shared: SharedRows | OpenRows, counts: _Counts, touched_by_rank: _Counts) -> Mapping[str, Metric]:
    numbers, size = _Numbers(*counts.tolist()), len(touched_by_rank)
    found: dict[str, Metric] = {
        "unique_share": WeightedMean(total=numbers.unique, weight=numbers.lookups),
        "hottest_share": WeightedMean(total=numbers.hottest, weight=numbers.last),
        "sent_bytes": WeightedMean(total=numbers.sent_bytes, weight=numbers.steps),
        # Every rank trains all replicas of a row.
        "touched_rows": WeightedMean(
            total=numbers.touched / (size if shared.placement == "replicate" else 1), weight=numbers.steps / size
        ),
        "bad_ids": WeightedMean(total=numbers.bad, weight=numbers.steps / size),
    }
    if numbers.touched:
        found["imbalance"] = float(touched_by_rank.max() / touched_by_rank.mean())
    if isinstance(shared, OpenRows):
        steps = numbers.steps / size
        found["rows"] = numbers.occupied
        found["admitted_rows"] = WeightedMean(total=numbers.admitted, weight=steps)
        found["evicted_rows"] = WeightedMean(total=numbers.evicted, weight=steps)
        found["shared_share"] = WeightedMean(total=numbers.shared, weight=numbers.unique)
    elif shared.owned.optimizer.moments:
        found["trained_rows"] = numbers.occupied
        if numbers.occupied < shared.facts.rows > 1:  # A full table does not show how many ids it has.
            found["collisions"] = estimated_collisions(numbers.occupied, shared.facts.rows)
    return found


def _hottest(ids: Tensor | None) -> tuple[float, float]:
    """Return the highest count of an id, and all ids."""
    if ids is None or not ids.numel():
        return 0.0, 0.0
    counts = torch.unique(ids, return_counts=True)[1]
    return float(counts.max()), float(ids.numel())


def _occupied(shared: SharedRows | OpenRows) -> float:
    """Return the number of ever trained rows.

    Of the rows that this rank saves.

    They have state.

    Of an open table, it is the number of all rows.
    """
    if isinstance(shared, OpenRows):
        return float(shared.rows.count)
    owned, (begin, end) = shared.owned, shared.saved_span
    for name, per_element in owned.optimizer.moments.items():
        assert name != WEIGHT, "a name of state"
        state = owned.tensors[name][begin - owned.begin : end - owned.begin]
        return float(torch.count_nonzero(state[:, 0] if per_element else state))
    return 0.0
