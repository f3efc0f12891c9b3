"""Copies of each row in an epoch, by weight.

They are a pure function of the seed and the epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.data.plan.permute import Ints, derive, permutation

ROW_UNITS = 1 << 32
"""Units of one copy of a row. Sums of fewer than 2**31 copies are exact in int64."""
_OFFSET, _ROWS = 6, 7  # Continue the uses of keys in plan/lanes.py.


class RowSampling:
    """Systematic sampling of rows.

    Each row gets its expected number of copies, rounded up or down at random. All rows lie on a line, each as long as
    its expected number of copies. A row has as many copies as whole numbers plus a random offset fall on it. So the
    number of copies of an epoch is constant, an expected number of at most 1 gives at most one copy, and the copies of
    any part of the line are within 1 of what is expected. The rows of a block lie on the line by their numbers of
    copies, and equal ones in an order that changes by epoch. Systematic sampling is due to Madow and Madow, Annals of
    Mathematical Statistics, 1944.

    Args:
        block_rows: Rows of each block, int64 [blocks].
        copies: Expected numbers of copies that occur, float64 [levels].
        codes: Index into `copies` for each row, unsigned integers [rows].
        rows: Number of copies of an epoch: the sum over all rows, up to rounding.
        seed: Seed of the offsets and orders.
    """

    def __init__(
        self,
        block_rows: Ints,
        copies: NDArray[np.float64],
        codes: NDArray[np.unsignedinteger[Any]],
        rows: int,
        *,
        seed: int,
    ) -> None:
        self._codes, self._seed = codes, seed
        self._units = _whole_units(copies, np.bincount(codes, minlength=len(copies)), rows)
        self._starts = np.concatenate([[0], np.cumsum(block_rows)])
        self._sums = np.concatenate([[0], np.cumsum(self._units[codes])])[self._starts]
        self._offsets = (rows + 1) * ROW_UNITS - int(self._sums[-1])
        assert 0 < self._offsets <= ROW_UNITS, "rounding adds less than a copy to fewer than 2**31 rows"

    def block_copies(self, epoch: int) -> Ints:
        """Number of copies in each block, int64 [blocks]."""
        copies: Ints = np.diff((self._sums + self._offset(epoch)) // ROW_UNITS)
        return copies

    def block_rows(self, epoch: int, block: int) -> Ints:
        """Row of each copy of a block, int64 [copies]."""
        start, stop = self._starts[block : block + 2]
        order = permutation(int(stop - start), derive(_ROWS, self._seed, epoch, block))
        codes = self._codes[start:stop]
        order = order[np.argsort(codes[order], kind="stable")]
        units = self._units[codes[order]]
        before = int(self._sums[block]) + self._offset(epoch)
        ends = (before % ROW_UNITS + np.cumsum(units)) // ROW_UNITS
        return np.repeat(order, np.diff(ends, prepend=0))

    def _offset(self, epoch: int) -> int:
        return derive(_OFFSET, self._seed, epoch) % self._offsets


def _whole_units(copies: NDArray[np.float64], times: Ints, rows: int) -> Ints:
    """Units of each number of copies, int64 [levels].

    Rounded up, so that they suffice for all `rows`.
    """
    units = np.ceil(copies * ROW_UNITS).astype(np.int64)
    while int(times @ units) < rows * ROW_UNITS:
        units[units % ROW_UNITS > 0] += 1  # A whole number of copies is exact, and stays what it is.
    return units
