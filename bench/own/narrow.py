"""Datasets of many small row groups: 10 float32 columns and a label."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb

COLUMNS = [f"x{place}" for place in range(10)]
ROW_BYTES = 4 * len(COLUMNS) + 4


def transform() -> fb.Transform:
    """`x` float32 [rows, 10] and `label` float32 [rows]."""
    return fb.Transform(x=fb.Dense(COLUMNS), label=fb.Label("label"))


def write(folder: Path, *, row_groups: int, rows: int, per_file: int = 1000) -> Path:
    """Write files of `per_file` row groups of `rows` rows. All full files are links to one file."""
    folder.mkdir(parents=True)
    first: Path | None = None
    for number, start in enumerate(range(0, row_groups, per_file)):
        path, size = folder / f"part-{number:05d}.parquet", min(per_file, row_groups - start)
        if first and size == per_file:
            os.link(first, path)
            continue
        _write_file(path, size, rows, seed=number)
        first = first or path
    return folder


def _write_file(path: Path, row_groups: int, rows: int, *, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schema = pa.schema([(name, pa.float32()) for name in [*COLUMNS, "label"]])
    with pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=False, write_statistics=False) as writer:
        for _ in range(row_groups):
            values = rng.standard_normal((len(COLUMNS), rows), dtype=np.float32)
            label = rng.integers(2, size=rows).astype(np.float32)
            writer.write_table(pa.table([*values, label], schema=schema), row_group_size=rows)
