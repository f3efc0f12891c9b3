"""Settings of the bench of tables: the size of the table, its lookups, the ways to train it, and the link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetting:
    """One world of `workers` ranks that train a table of `rows` x `dim` in each of `ways`, one after the other.

    A global batch has `batch` rows of `columns` ids each, whose frequencies follow rank^-`power`. `mbit` is the speed
    of the link of each rank in both directions, 0 for no limit. `steps` are measured after one that is not. All of this
    `turns` times, so that a disturbance affects all ways alike.
    """

    ways: tuple[str, ...]
    workers: int
    rows: int = 10_000_000
    dim: int = 16
    batch: int = 8192
    columns: int = 26
    power: float = 1.05
    steps: int = 10
    dense_steps: int = 3
    mbit: int = 0
    turns: int = 1

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> TableSetting:
        return cls(**{**found, "ways": tuple(found["ways"])})

    def steps_of(self, way: str) -> int:
        """Return the number of measured steps of a way."""
        return self.dense_steps if way == "dense" else self.steps

    def lookups(self, step: int, rank: int) -> npt.NDArray[np.int64]:
        """Return the ids of a rank in a step, [its rows, columns]. All ranks' ids do not depend on their number."""
        rng = np.random.default_rng([step])
        ids = power_law(self.batch * self.columns, self.rows, self.power, rng).reshape(self.batch, self.columns)
        return np.array_split(ids, self.workers)[rank]


def power_law(count: int, rows: int, power: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw ids of 0 to `rows - 1` whose frequencies fall with rank^-`power`. Frequent ones lie anywhere."""
    rank = np.minimum(((rows ** (1 - power) - 1) * rng.random(count) + 1) ** (1 / (1 - power)), rows)
    spread = (rank.astype(np.int64) - 1).astype(np.uint64) * _SPREAD
    return (spread % np.uint64(rows)).astype(np.int64)


def exchanged_bytes(unique: float, dim: int, ranks: int) -> float:
    """Return the bytes that the design allows a rank and step, before its margin of a tenth: U (8 + 8d)(R - 1)/R."""
    return unique * (8 + 8 * dim) * (ranks - 1) / ranks
