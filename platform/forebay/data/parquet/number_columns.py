"""Columns of plain numbers of one Parquet file: which they are, and what all row groups share about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class NumberColumn(NamedTuple):
    """Column of integers or floats of 4 or 8 bytes.

    Name, Arrow type, bytes of an item, whether it may have nulls, and place of its chunk among the fetched ones.
    """

    name: str
    type: pa.DataType
    item_bytes: int
    is_optional: bool
    chunk: int


class NumberColumns:
    """Columns of plain numbers among the fetched column chunks of a file: those of 4 bytes, then those of 8.

    Attributes:
        columns: The columns.
        groups: Bytes of an item, and the slice of its columns.
        leaves: Number of each column's chunk in the file, int64 [columns].
        chunks: Place of each column's chunk among the fetched ones, int64 [columns].
        is_optional: Whether each column may have nulls, int64 [columns].
    """

    def __init__(self, found: Sequence[NumberColumn], leaves: Sequence[int]) -> None:
        self.columns = tuple(sorted(found, key=lambda column: column.item_bytes))
        num_short = sum(column.item_bytes == 4 for column in found)
        self.groups = ((4, slice(0, num_short)), (8, slice(num_short, len(found))))
        self.chunks = np.array([column.chunk for column in self.columns], np.int64)
        self.leaves = np.array(leaves, np.int64)[self.chunks]
        self.is_optional = np.array([column.is_optional for column in self.columns], np.int64)
        self._place_of = {column.name: place for place, column in enumerate(self.columns)}
        self._places: dict[tuple[tuple[str, ...], pa.DataType], NDArray[np.int64]] = {}

    def place(self, name: str) -> int:
        """Place of a column among `columns`, or -1."""
        return self._place_of.get(name, -1)

    def places(self, names: tuple[str, ...], kind: pa.DataType) -> NDArray[np.int64]:
        """Place of each of `names` that is a column of type `kind`, else -1: int64 [names]. Computed once."""
        key = (names, kind)
        if key not in self._places:
            places = [self.place(name) for name in names]
            is_kind = [place >= 0 and self.columns[place].type == kind for place in places]
            self._places[key] = np.where(is_kind, places, -1).astype(np.int64)
        return self._places[key]
