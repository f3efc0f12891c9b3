"""Two tables of the preparation bench: clicks and the users who made them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 8
ROW_GROUPS_PER_FILE = 4
NUM_FLOATS = 20
FLOATS = tuple(f"x{place:02d}" for place in range(NUM_FLOATS))
USERS, ITEMS, COUNTRIES = 50_000, 1_000, 200
USERS_FILE = "users.parquet"


def make_tables(folder: Path, rows: int) -> Path:
    """Write both tables unless they exist. Returns their folder.

    Clicks: `row` int64 (unique, in no order), `user` and `item` int32, `country` string, `cents` int64, 20 float32
    columns, `label` int8. Users: `user` int32, `age` int16, `joined` int32 (days).
    """
    target = folder / f"clicks-{rows}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    users = {"user": rng.permutation(USERS).astype(np.int32), "age": rng.integers(15, 90, USERS).astype(np.int16)}
    pq.write_table(pa.table(users | {"joined": rng.integers(0, 4000, USERS).astype(np.int32)}), unfinished / USERS_FILE)
    for number, part in enumerate(np.array_split(rng.permutation(rows), FILES)):
        table = _clicks(rng, part)
        groups = -(-len(part) // ROW_GROUPS_PER_FILE)
        pq.write_table(table, unfinished / f"clicks-{number:05d}.parquet", row_group_size=groups)
    unfinished.rename(target)
    return target


def _clicks(rng: np.random.Generator, rows: np.ndarray) -> pa.Table:
    size = len(rows)
    floats = rng.lognormal(size=(NUM_FLOATS, size)).astype(np.float32)
    country = pa.DictionaryArray.from_arrays(
        rng.zipf(1.3, size).clip(max=COUNTRIES).astype(np.int32) - 1, [f"c{place:03d}" for place in range(COUNTRIES)]
    )
    columns = {
        "row": rows,
        "user": rng.integers(0, USERS, size).astype(np.int32),
        "item": rng.zipf(1.2, size).clip(max=ITEMS).astype(np.int32),
        "country": country.cast(pa.string()),
        "cents": rng.integers(1, 100_000, size),
        **dict(zip(FLOATS, floats, strict=True)),
        "label": (floats[0] > floats[1]).astype(np.int8),
    }
    return pa.table(columns)
