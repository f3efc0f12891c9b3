"""Series in three layouts, as frames and as Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb


def random_series(rng: np.random.Generator, *, nulls: float = 0.1) -> pd.DataFrame:
    """Steps of 2 to 5 entities, with gaps in time and missing values, sorted by (meter, ts)."""
    parts = []
    for entity in range(int(rng.integers(2, 6))):
        steps = int(rng.integers(5, 70))
        hours = np.cumsum(np.where(rng.random(steps) < 0.05, rng.integers(2, 9, steps), 1)) + int(rng.integers(0, 9))
        values = rng.normal(size=(steps, 2)).astype(np.float32)
        values[rng.random(values.shape) < nulls] = np.nan
        times = pd.Timestamp("2020-01-01") + pd.to_timedelta(hours, unit="h")
        part = {"meter": f"m{entity * 7 % 5}", "ts": times, "hours": hours, "load": values[:, 0], "temp": values[:, 1]}
        parts.append(pd.DataFrame(part | {"hour": hours % 24, "region": entity}))
    return pd.concat(parts, ignore_index=True).sort_values(["meter", "ts"], ignore_index=True)


def write_series(folder: Path, frame: pd.DataFrame, layout: str, rng: np.random.Generator) -> fb.Manifest:
    """Write the frame as a file per entity, day files in random order, a file in order of time, or lists per entity."""
    folder.mkdir(parents=True)
    match layout:
        case "entity":
            for name, part in frame.groupby("meter"):
                table = pa.Table.from_pandas(part, preserve_index=False)
                pq.write_table(table, folder / f"{name}.parquet", row_group_size=int(rng.integers(3, 40)))
        case "day":
            for day, part in frame.groupby(frame.ts.dt.date):
                shuffled = part.sample(frac=1, random_state=int(rng.integers(1 << 30)))
                pq.write_table(pa.Table.from_pandas(shuffled, preserve_index=False), folder / f"{day}.parquet")
        case "interleaved":
            table = pa.Table.from_pandas(frame.sort_values("ts", kind="stable"), preserve_index=False)
            pq.write_table(table, folder / "all.parquet", row_group_size=int(rng.integers(3, 40)))
        case "lists":
            columns = ["ts", "hours", "load", "temp", "hour"]
            lists = frame.groupby("meter").agg(dict.fromkeys(columns, list) | {"region": "first"}).reset_index()
            pq.write_table(pa.Table.from_pandas(lists, preserve_index=False), folder / "all.parquet", row_group_size=2)
    return fb.scan(str(folder))


@pytest.fixture
def cache(tmp_path: Path) -> fb.DiskCache:
    return fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
