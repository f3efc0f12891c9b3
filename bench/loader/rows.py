"""Single rows, and batches of them, for systems whose format or loader knows only single samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.loader.features import CITIES, KINDS, MAX_TAGS, pack

SCALARS = {"tags_lengths": np.int32, "label": np.float32}
_CITY_IDS = {city: place + 2 for place, city in enumerate(CITIES)}


def samples(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Packed rows of a Parquet file: arrays without their leading length, and Python numbers for scalars."""
    file = pq.ParquetFile(path)
    for index in range(file.num_row_groups):
        arrays = pack(file.read_row_group(index), kind)
        for row in range(len(arrays["label"])):
            yield {name: array[row] if array.ndim > 1 else array[row].item() for name, array in arrays.items()}


def stack(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Stack packed rows into a batch."""
    return {name: np.array([row[name] for row in rows], dtype=SCALARS.get(name)) for name in rows[0]}


def pack_rows(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, np.ndarray]:
    """Pack rows of one Python value per column into a batch."""
    packed = {}
    for name, columns in KINDS[kind].groups.items():
        dtype = np.int64 if name == "ids" else np.float32
        packed[name] = np.array([[row[column] for column in columns] for row in rows], dtype=dtype)
    if KINDS[kind].ragged:
        lengths = np.array([len(row["tags"]) for row in rows], dtype=np.int32)
        padded = np.zeros((len(rows), MAX_TAGS), dtype=np.int64)
        padded[np.arange(MAX_TAGS) < lengths[:, None]] = np.concatenate([row["tags"] for row in rows])
        packed |= {"tags": padded, "tags_lengths": lengths}
        packed["city"] = np.array([[_CITY_IDS.get(row["city"], 1)] for row in rows], dtype=np.int64)
    packed["label"] = np.array([row["label"] for row in rows], dtype=np.float32)
    return packed
