"""Lanes of an epoch: assignment of rows, and their order.

Steps 1 and 2 of the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from forebay.data.plan.permute import Ints, derive, permutation

# The first number of every key is its use, so that no two uses share a key.
_DEAL, _PIECES, _ROWS, _LINE, _TURN = 1, 2, 3, 4, 5

_FEW_PIECES = 4
"""Pieces per lane below which their permutation alone would repeat. Then the lane also starts at a random row."""


class LaneRows(NamedTuple):
    """Rows in order, by block.

    `block` int64 [n] is the number of the row group in the manifest, `row` int64 [n] the row in it.
    """

    block: Ints
    row: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Runs of consecutive rows of one block.

    `block`, `first` (row within the block) and `rows`, each int64 [n].
    """

    block: Ints
    first: Ints
    rows: Ints

    def select(self, index: Ints | slice) -> Pieces:
        """Return the pieces at `index`, in its order."""
        return Pieces(block=self.block[index], first=self.first[index], rows=self.rows[index])

    def turned(self, start: int) -> Pieces:
        """Rotate the rows to begin at row `start`.

        Cuts one piece in two.
        """
        ends = np.cumsum(self.rows)
        cut = int(np.searchsorted(ends, start, side="right"))
        done = start - int(ends[cut] - self.rows[cut])
        index = np.concatenate([np.arange(cut, len(ends)), np.arange(cut + 1)])[: len(ends) + (done > 0)]
        first, rows = self.first[index], self.rows[index]
        if done:
            first[0] += done
            rows[0] -= done
            rows[-1] = done
        return Pieces(block=self.block[index], first=first, rows=rows)


def lane_starts(num_rows: int, lanes: int) -> Ints:
    """Return the first row of each lane, int64 [lanes + 1].

    Rows count over all blocks. The first `num_rows % lanes` lanes are one row longer.
    """
    lane = np.arange(lanes + 1, dtype=np.int64)
    return lane * (num_rows // lanes) + np.minimum(lane, num_rows % lanes)


class Deal:
    """Assignment of all rows to lanes.

    Blocks come in line order, and each lane has a run of the line: `order` int32 [blocks]. Pieces are made lane by
    lane: a rank asks for a few of them, and 24 bytes for each row group would be the most of its plan.
    """

    def __init__(self, block_rows: Ints, *, seed: int, lanes: int, shuffle: bool) -> None:
        num_blocks = len(block_rows)
        order = permutation(num_blocks, derive(_DEAL, seed)) if shuffle else np.arange(num_blocks, dtype=np.int64)
        ends = np.cumsum(block_rows[order])
        cuts = lane_starts(int(ends[-1]), lanes)
        # side="right": a block without rows ends where the next one starts, and must own nothing.
        self._first = np.searchsorted(ends, cuts, side="right")
        self._offset = cuts - np.append(ends - block_rows[order], ends[-1])[self._first]
        self._block_rows = block_rows
        self.order = order.astype(np.int32)

    def pieces(self, lane: int) -> Pieces:
        """Pieces of a lane, in line order."""
        (start, stop), (skipped, taken) = self._first[lane : lane + 2], self._offset[lane : lane + 2]
        block = self.order[start : stop + (taken > 0)].astype(np.int64)
        first, rows = np.zeros_like(block), self._block_rows[block]
        if len(block):
            first[0] = skipped
            if taken:
                rows[-1] = taken
            rows -= first
        held = rows > 0
        return Pieces(block=block[held], first=first[held], rows=rows[held])


def shuffled_line(block_rows: Ints, *, seed: int, epoch: int) -> LaneRows:
    """Shuffle all rows of all blocks.

    Used for datasets so small that a lane would hold only a few rows.
    """
    line = permutation(int(block_rows.sum()), derive(_LINE, seed, epoch))
    ends = np.cumsum(block_rows)
    block = np.searchsorted(ends, line, side="right")
    return LaneRows(block, line - (ends - block_rows)[block])


def owned_order(lanes: int) -> Ints:
    """Lanes in bit-reversed order, int64 [lanes].

    A rank owns a run of lanes in this order. Positions go round the lanes, so a batch that is not a multiple of `lanes`
    has one row more in some lanes next to each other. Any run of this order spreads over all lanes, so these rows
    spread over all ranks.

    >>> owned_order(8).tolist(), owned_order(6).tolist()
    ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 5, 3])
    """
    order = np.zeros(1, dtype=np.int64)
    while len(order) < lanes:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order[order < lanes]


@lru_cache(maxsize=64)
def shuffle_bounds(num_rows: int, shuffle_rows: int) -> Ints:
    """Return the bounds of a lane's shuffles, int64 [shuffles + 1].

    The rows between two bounds are shuffled together. The first three shuffles are smaller: the first batch comes
    early. All lanes of a plan have one of two numbers of rows, so the bounds are kept.

    >>> shuffle_bounds(40, 16).tolist()
    [0, 2, 6, 14, 30, 40]
    """
    ramp = np.cumsum([max(shuffle_rows >> shift, 1) for shift in (3, 2, 1)])
    full = np.arange(int(ramp[-1]) + shuffle_rows, num_rows, shuffle_rows, dtype=np.int64)
    inner = np.concatenate([ramp, full])
    bounds = np.concatenate([[0], inner[inner < num_rows], [num_rows]]).astype(np.int64)
    bounds.setflags(write=False)
    return bounds


class LaneEpoch:
    """Rows of one lane in the order of one epoch.

    A row's number in this order is its *lane row*.

    Args:
        pieces: Rows of the lane in order, before the shuffles.
        bounds: Lane rows at which shuffles start, and the number of rows, int64 [shuffles + 1].
        key: Key of the shuffles' permutations. None keeps the rows in the order of the pieces.
    """

    def __init__(self, pieces: Pieces, bounds: Ints, key: int | None) -> None:
        self._ends = np.cumsum(pieces.rows)
        self._starts = self._ends - pieces.rows
        self._blocks, self._shifts = pieces.block, pieces.first - self._starts
        self._bounds = bounds
        arrays = (self._ends, self._blocks, self._shifts, bounds)
        assert all(array.dtype == np.int64 and array.flags.c_contiguous for array in arrays), "a kernel reads them"
        self.facts = (
            *(array.ctypes.data for array in arrays),
            len(self._ends),
            len(bounds) - 1,
            key or 0,
            key is not None,
        )
        """Lane of `forebay.data.kernels.calls.order_lanes`, valid as long as this object."""

    @classmethod
    def of(cls, pieces: Pieces, *, seed: int, epoch: int, lane: int, shuffle_rows: int, shuffle: bool) -> LaneEpoch:
        num_rows = int(pieces.rows.sum())
        bounds = shuffle_bounds(num_rows, shuffle_rows)
        if not shuffle:
            return cls(pieces, bounds, None)
        pieces = pieces.select(permutation(len(pieces.rows), derive(_PIECES, seed, epoch, lane)))
        if len(pieces.rows) < _FEW_PIECES and len(bounds) > 2:
            pieces = pieces.turned(derive(_TURN, seed, epoch, lane) % num_rows)
        return cls(pieces, bounds, derive(_ROWS, seed, epoch, lane))

    @classmethod
    def of_rows(cls, rows: LaneRows) -> LaneEpoch:
        """Create a lane of few rows, in the given order."""
        ones = np.ones(len(rows.row), dtype=np.int64)
        bounds = np.unique([0, len(ones)]).astype(np.int64)
        return cls(Pieces(block=rows.block, first=rows.row, rows=ones), bounds, None)

    def spans(self) -> tuple[Ints, Ints, Ints]:
        """Return the block and lifetime of each piece.

        The lifetime is the lane row of its first need, and the lane row of its release: both are bounds of shuffles.
        """
        first_shuffle = np.searchsorted(self._bounds, self._starts, side="right") - 1
        last_shuffle = np.searchsorted(self._bounds, self._ends - 1, side="right") - 1
        return self._blocks, self._bounds[first_shuffle], self._bounds[last_shuffle + 1]
