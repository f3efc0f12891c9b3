"""Click log of the GPU's bench, written by several processes: 100 float32, 26 int64 ids if wanted, a label."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DENSE = [f"d{number:02d}" for number in range(100)]
IDS = [f"c{number:02d}" for number in range(26)]
GROUPS_PER_FILE = 4


def bytes_per_row(*, with_ids: bool) -> int:
    """Bytes of a row of a batch: float32, and ids as int64."""
    return 4 * (len(DENSE) + 1) + 8 * len(IDS) * with_ids


def write(folder: Path, rows: int, *, group_rows: int, with_ids: bool, processes: int) -> int:
    """Write about `rows` rows, whole files of four row groups. Returns their number."""
    folder.mkdir()
    num_files = max(1, rows // (group_rows * GROUPS_PER_FILE))
    make = partial(_write_file, folder, group_rows, with_ids)
    with ProcessPoolExecutor(min(processes, num_files), mp_context=get_context("spawn")) as pool:
        return sum(pool.map(make, range(num_files)))


def _write_file(folder: Path, group_rows: int, with_ids: bool, number: int) -> int:
    pa.set_cpu_count(1)
    path = folder / f"part-{number:04}.parquet"
    with pq.ParquetWriter(path, _table(number, 0, 1, with_ids).schema, compression="snappy") as writer:
        for group in range(GROUPS_PER_FILE):
            writer.write_table(_table(number, group, group_rows, with_ids), row_group_size=group_rows)
    return GROUPS_PER_FILE * group_rows


def _table(number: int, group: int, rows: int, with_ids: bool) -> pa.Table:
    rng = np.random.default_rng([7, number, group])
    columns: dict[str, np.ndarray] = dict(
        zip(DENSE, rng.standard_normal((len(DENSE), rows), dtype=np.float32), strict=True)
    )
    for place, name in enumerate(IDS if with_ids else ()):
        # As in click logs: few values in some columns, many in others, and small ones more often.
        most = 10 ** (1 + place % 6)
        columns[name] = (most * rng.random(rows) ** 3).astype(np.int64) * 31 + place
    columns["label"] = (rng.random(rows) < 0.2).astype(np.float32)
    return pa.table(columns)
