"""Memory of preparations that do not fit into it, and whether their rows are right.

python -m bench.own.preparation --json preparation.json [--quick]

`from_ray_data`: a join, an aggregate, a sort, a vocabulary and moments over ten times the object store, compared as
a set with the same work done by pyarrow, file by file. `fb.prepare`: a sort of x rows and of ten times as many, in runs
of 32 MiB. Each in a process of its own, whose peak memory the operating system tells.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import ray

import forebay as fb
from bench.own.verdict import Figure, main, measure
from bench.preparation.data import USERS_FILE, make_tables
from bench.preparation.pipeline import CATEGORY, NUMBERS, joined_clicks, transformed
from bench.processes import peak_bytes
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation import external_sort

MOST_DRIVER_BYTES = 500_000_000
MOST_GROWTH = 0.10
ROW_BYTES = 113
_STORE_BYTES = 150 << 20
_RUN_BYTES = 32 << 20
_SORT_ROW_BYTES = 24


def prepare_out_of_core(data: str, into: str, cpus: int, store_bytes: int) -> dict[str, Any]:
    """Prepare with Ray Data. Returns the driver's peak bytes, before and after, and the id of the manifest."""
    ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=store_bytes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    before, began = peak_bytes(), time.perf_counter()
    prepared = fb.preparation.from_ray_data(
        _clicks,
        root=data,
        version="1",
        inputs=[data],
        into=into,
        key="row",
        row_group_rows=65_536,
        fit=[fb.preparation.Moments(NUMBERS), fb.Vocabulary(CATEGORY)],
    )
    return {
        "seconds": time.perf_counter() - began,
        "before": before,
        "peak": peak_bytes(),
        "rows": prepared.rows,
        "folder": prepared.folder,
        "manifest": prepared.manifest.id,
        "mean": prepared.statistics["price"].mean,
        "values": len(prepared.vocabularies[CATEGORY]),
    }


def _clicks(root: str) -> ray.data.Dataset:
    files = sorted(path.name for path in Path(root).glob("clicks-*.parquet"))
    return joined_clicks(root, files, pa.fs.LocalFileSystem())


def compare_with_pyarrow(data: str, folder: str) -> dict[str, Any]:
    """Rows, and a sum of hashes of rows, of the prepared dataset and of the same work by pyarrow alone."""
    files = sorted(Path(data).glob("clicks-*.parquet"))
    users, counted = pq.read_table(f"{data}/{USERS_FILE}"), []
    for path in files:
        cents = pq.read_table(path, columns=["item", "cents"]).group_by("item")
        counted.append(cents.aggregate([("cents", "count"), ("cents", "sum")]))
    items = pa.concat_tables(counted).group_by("item").aggregate([("cents_count", "sum"), ("cents_sum", "sum")])
    items = items.rename_columns(["item", "clicks", "cents"]).sort_by("item")
    expected = _set_digest(transformed(pq.read_table(path), users, items) for path in files)
    reader = RowGroupReader(fb.Prepared.load(folder).manifest)
    found = _set_digest(reader.read(index) for index in range(len(reader.manifest)))
    return {"expected": expected, "found": found}


def _set_digest(tables: Iterator[pa.Table]) -> list[int]:
    """Number of rows and sum of their hashes: equal for equal rows in any order."""
    rows = total = 0
    for table in tables:
        frame = table.to_pandas()[sorted(table.column_names)]
        hashes = pd.util.hash_pandas_object(frame, index=False).to_numpy()
        rows, total = rows + len(frame), (total + int(hashes.sum(dtype=np.uint64))) % (1 << 64)
    return [rows, total]


def sort_rows(rows: int, into: str) -> dict[str, float]:
    """Peak bytes of a sort of `rows` rows of three numbers, in no order."""
    before = peak_bytes()
    external_sort.sorted_tables.__defaults__ = (_RUN_BYTES,)
    fb.prepare(_numbered, count=rows, inputs=[], version="1", into=into, key="row", row_group_rows=65_536)
    return {"peak": peak_bytes(), "before": before}


def _numbered(count: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(0)
    for start in range(0, count, 100_000):
        size = min(100_000, count - start)
        row = rng.integers(0, 1 << 62, size)
        yield pa.table({"row": row, "value": rng.random(size), "place": np.arange(start, start + size)})


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Driver's memory, difference from pyarrow's rows, growth of the sort's memory."""
    store_bytes = _STORE_BYTES // 2 if quick else _STORE_BYTES
    rows = 100_000 if quick else 10 * store_bytes // ROW_BYTES
    data = make_tables(folder, rows)
    module = __spec__.name
    made = measure(module, "prepare_out_of_core", data=data, into=folder / "into", cpus=2, store_bytes=store_bytes)
    sets = measure(module, "compare_with_pyarrow", data=data, folder=made["folder"])
    differing = abs(sets["expected"][0] - sets["found"][0]) or int(sets["expected"] != sets["found"])
    rounds, count = (1, 100_000) if quick else (3, 4_000_000)
    sorts = {
        times: [
            measure(module, "sort_rows", rows=times * count, into=folder / f"sorted-{times}-{turn}")["peak"]
            for turn in range(rounds)
        ]
        for times in (1, 10)
    }
    return [
        Figure(
            figure=f"driver's peak memory, {rows * ROW_BYTES / store_bytes:.1f}x the object store",
            target=f"< {MOST_DRIVER_BYTES / 1e6:.0f} MB",
            measured=made["peak"] / 1e6,
            unit="MB",
            passed=made["peak"] < MOST_DRIVER_BYTES,
            note=(
                f"{made['rows']:,} rows of {ROW_BYTES} bytes, object store of {store_bytes >> 20} MiB, 2 CPUs, "
                f"{made['seconds']:.0f} s; {made['before'] / 1e6:.0f} MB of it before the pipeline was built"
            ),
        ),
        Figure(
            figure="rows that differ from the same work by pyarrow, as a set",
            target="0",
            measured=float(differing),
            unit="rows",
            passed=not differing,
            note=f"{sets['found'][0]:,} rows, {made['values']} values in the vocabulary",
        ),
        _growth(sorts, count),
    ]


def _growth(sorts: dict[int, Sequence[int]], count: int) -> Figure:
    once, tenfold = (statistics.median(sorts[times]) for times in (1, 10))
    return Figure(
        figure="peak memory of a sort, 10x larger dataset",
        target=f"<= +{MOST_GROWTH:.0%}",
        measured=100 * (tenfold / once - 1),
        unit="%",
        passed=tenfold / once - 1 <= MOST_GROWTH,
        note=(
            f"{once / 2**20:.0f} MiB at {count:,} rows ({count * _SORT_ROW_BYTES / 2**20:.0f} MiB), "
            f"{tenfold / 2**20:.0f} MiB at {10 * count:,}, runs of {_RUN_BYTES >> 20} MiB"
        ),
    )


if __name__ == "__main__":
    main(
        figures,
        {
            "prepare_out_of_core": prepare_out_of_core,
            "compare_with_pyarrow": compare_with_pyarrow,
            "sort_rows": sort_rows,
        },
    )
