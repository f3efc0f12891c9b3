"""Arrays of a batch of each dataset, and their conversion from Arrow columns, for systems that hand out columns.

Needs only NumPy and pyarrow, of any version from 14 on, so that every system's environment can import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUM_FLOATS, NUM_IDS, MAX_TAGS = 13, 26, 32
CITIES = [f"city {number:03d}" for number in range(1000)]
_VOCABULARY = pa.array(CITIES)


@dataclass(frozen=True)
class Kind:
    """Kind of dataset: array name -> columns packed into it, row-major [rows, columns]. Mixed data has three more
    arrays.
    """

    groups: Mapping[str, Sequence[str]]
    number_in: tuple[str, str]
    """(array, column) of the row numbers."""
    ragged: bool = False


KINDS = {
    "dense": Kind(groups={"x": [f"x{place:03d}" for place in range(100)]}, number_in=("x", "x000")),
    "mixed": Kind(
        groups={
            "dense": [f"d{place:02d}" for place in range(NUM_FLOATS)],
            "ids": [f"c{place:02d}" for place in range(NUM_IDS)],
        },
        number_in=("ids", "c00"),
        ragged=True,
    ),
}


def pack(table: pa.Table, kind: str) -> dict[str, np.ndarray]:
    """Pack the arrays of a batch.

    `x` float32 [rows, 100]; or `dense` float32 [rows, 13], `ids` int64 [rows, 26], `tags` int64 [rows, 32] padded with
    0, `tags_lengths` int32 [rows], `city` int64 [rows, 1]; and `label` float32 [rows].
    """
    table = table.combine_chunks()
    packed = {name: _packed(table, columns) for name, columns in KINDS[kind].groups.items()}
    if KINDS[kind].ragged:
        packed["tags"], packed["tags_lengths"] = pad(_whole(table["tags"]))
        packed["city"] = city_ids(_whole(table["city"]))
    packed["label"] = _whole(table["label"]).to_numpy(zero_copy_only=False)
    return packed


def city_ids(cities: pa.Array) -> np.ndarray:
    """Ids of cities, int64 [rows, 1] as Forebay has them: 2 + the place in the vocabulary, 1 for any other string."""
    places = pc.fill_null(pc.index_in(cities, value_set=_VOCABULARY), -1)
    return places.to_numpy(zero_copy_only=False).astype(np.int64)[:, None] + 2


def pad(lists: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Pad lists with 0. Returns the matrix and the length of each list."""
    lengths = np.diff(lists.offsets.to_numpy())
    padded = np.zeros((len(lists), MAX_TAGS), dtype=np.int64)
    padded[np.arange(MAX_TAGS) < lengths[:, None]] = lists.flatten().to_numpy()
    return padded, lengths.astype(np.int32)


def row_numbers(batch: Mapping[str, object], kind: str) -> np.ndarray:
    """Numbers of the rows of a batch, int64 [rows]."""
    array, column = KINDS[kind].number_in
    values = np.asarray(batch[array])[:, 0] if array in batch else np.asarray(batch[column])
    return values.astype(np.int64)


def _packed(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    chosen = table.select(list(columns))
    if len(table) and hasattr(pa.RecordBatch, "to_tensor"):
        return chosen.to_batches()[0].to_tensor(row_major=True).to_numpy()
    return np.stack([_whole(chosen[name]).to_numpy(zero_copy_only=False) for name in columns], axis=1)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
