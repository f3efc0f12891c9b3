"""Order of a table's rows, and their owners.

Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.errors import TooManyRanks

NUM_SHARDS = 64
"""Shards of every table, and the largest world that can share one. A constant, like the lanes of a plan."""
_SHIFT, _MASK = 6, NUM_SHARDS - 1


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Positions of a table's rows.

    They are sorted by shard, which is `id % 64`, and within a shard by id.

    A rank owns whole shards, one after another. So its rows are one span of positions, in every world: another world
    size cuts the same order elsewhere.

    >>> TableLayout(130).positions(torch.tensor([0, 64, 128, 1, 65])).tolist()
    [0, 1, 2, 3, 4]
    """

    rows: int

    def positions(self, ids: Tensor) -> Tensor:
        """Return the positions of ids, int64 from 0 to `rows - 1`.

        They are int32 if they fit, which sort faster.
        """
        shard = ids & _MASK
        positions = shard * (self.rows >> _SHIFT) + shard.clamp_(max=self.rows & _MASK) + (ids >> _SHIFT)
        return positions.to(torch.int32) if self.rows < 1 << 31 else positions

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the ids of the positions `begin` to `end`, int64."""
        starts = np.array([self.start_of(shard) for shard in range(NUM_SHARDS + 1)])
        positions = np.arange(begin, end, dtype=np.int64)
        shards = np.searchsorted(starts, positions, side="right") - 1
        ids: NDArray[np.int64] = ((positions - starts[shards]) << _SHIFT) + shards
        return ids

    def start_of(self, shard: int) -> int:
        """Return the position of the first row of a shard."""
        return shard * (self.rows >> _SHIFT) + min(shard, self.rows & _MASK)

    def bounds(self, world_size: int) -> tuple[int, ...]:
        """Return each rank's first position, then the row count.

        Raises `TooManyRanks`.
        """
        if world_size > NUM_SHARDS:
            raise TooManyRanks(
                f"a table has {NUM_SHARDS} shards, and {world_size} workers were to share it. Use {NUM_SHARDS} workers "
                "at most.",
                world_size=world_size,
            )
        return tuple(self.start_of(-(-rank * NUM_SHARDS // world_size)) for rank in range(world_size + 1))
