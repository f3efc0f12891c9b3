"""Data of the sequence bench: random walks of equal length, in Parquet and as one flat file. Made once per size."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.sequences.setting import SERIES_STEPS, SERIES_WINDOWS

ROW_GROUP_VALUES = 1 << 20
"""Values of a row group, all columns together: blocks of 4 MB."""
_PERIODS = (24, 168)


def make(folder: Path, windows: int, columns: int) -> tuple[Path, Path]:
    """Folder of Parquet files and path of the flat file, of `windows // 10,000` series."""
    target = folder / f"series-{windows}-{columns}"
    parquet, flat = target / "parquet", target / "values.float32"
    if (target / "finished").exists():
        return parquet, flat
    shutil.rmtree(target, ignore_errors=True)
    parquet.mkdir(parents=True)
    series = windows // SERIES_WINDOWS
    per_file = max(series // 8, 1)
    rng = np.random.default_rng([windows, columns])
    with flat.open("wb") as values:
        for first in range(0, series, per_file):
            with pq.ParquetWriter(parquet / f"{first:07d}.parquet", _schema(columns)) as writer:
                _write(writer, values, range(first, min(first + per_file, series)), rng)
    (target / "finished").touch()
    return parquet, flat


def _schema(columns: int) -> pa.Schema:
    return pa.schema([("series", pa.int32()), *((f"c{number}", pa.float32()) for number in range(columns))])


def _write(writer: pq.ParquetWriter, values: object, numbers: range, rng: np.random.Generator) -> None:
    columns = len(writer.schema) - 1
    rows = ROW_GROUP_VALUES // columns
    at_once = max(4 * rows // SERIES_STEPS, 1)
    left: list[pa.Table] = []
    for first in range(numbers.start, numbers.stop, at_once):
        some = np.arange(first, min(first + at_once, numbers.stop), dtype=np.int32)
        steps = _walks(rng, len(some), columns)
        steps.tofile(values)  # type: ignore[arg-type]
        arrays = [pa.array(np.repeat(some, SERIES_STEPS)), *(pa.array(np.ascontiguousarray(each)) for each in steps.T)]
        table = pa.concat_tables([*left, pa.table(arrays, schema=writer.schema)])
        whole = len(table) // rows * rows
        writer.write_table(table.slice(0, whole), row_group_size=rows)
        left = [table.slice(whole)]
    for table in left:
        if len(table):
            writer.write_table(table, row_group_size=rows)


def _walks(rng: np.random.Generator, series: int, columns: int) -> np.ndarray:
    """Values of some series, float32 [series * steps, columns]: a day, a week and noise, in steps of 1/64.

    Few distinct values keep the files of 10^9 steps small.
    """
    hours = np.arange(SERIES_STEPS, dtype=np.float32)[:, None]
    cycles = sum(np.sin(hours * (2 * np.pi / period)) for period in _PERIODS)
    level = rng.normal(size=(series, 1, columns)).astype(np.float32)
    noise = rng.standard_normal((series, SERIES_STEPS, columns), dtype=np.float32)
    values = np.round((level + cycles + 0.3 * noise) * 64) / 64
    return values.reshape(-1, columns).astype(np.float32)
