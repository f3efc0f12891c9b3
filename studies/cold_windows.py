"""Stalls of a trainer in a cold epoch with more data workers than this machine has cores.

    PYTHONPATH=platform python -m studies.cold_windows [--workers 14] [--block-s 0.3] [--rates 0.4,0.55]

The core of a data worker is taken for `--block-s` by a sleep, so workers need few real cores. The trainer takes
`--rates` million rows a second, once with half of 256 MiB for blocks ahead, and once with as many as a window has.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench.device import clicks

import forebay as fb
from forebay.data.cache.builders import data_workers
from forebay.data.cache.source import LocalCache

_GROUP_ROWS, _BATCH = 15_625, 8_192
_WAYS = {"256 MiB": 256 << 20, "a window": None}


def slow_block(batch: pa.RecordBatch, block_s: float) -> dict[str, object]:
    """Take the core of a data worker for `block_s`."""
    time.sleep(block_s)
    return {"x": np.column_stack([batch.column(name) for name in clicks.DENSE])}


def stalls(data: Path, block_s: float, rate: float, prefetch_bytes: int | None) -> tuple[float, float]:
    """Seconds of an epoch in which the trainer waited after its first batch, and of the whole epoch."""
    transform = fb.Transform(fn=partial(slow_block, block_s=block_s))
    rows = fb.Data(plan=fb.build_plan(fb.scan(str(data)), seed=1), transform=transform, global_batch=_BATCH)
    with tempfile.TemporaryDirectory() as folder:
        cache = LocalCache(fb.CacheSpec(path=folder, min_free_bytes=0, core_share=1.0))
        time.sleep(5)  # workers that were started here are ready
        with fb.Loader(rows, cache, epochs=1, prefetch_bytes=prefetch_bytes) as loader:
            began, due, waited = time.perf_counter(), None, 0.0
            for batch in loader:
                now = time.perf_counter()
                waited += max(0.0, now - due) if due is not None else 0.0
                due = max(now, due or now) + batch.num_rows / rate
                time.sleep(max(0.0, due - time.perf_counter()))
            return waited, time.perf_counter() - began


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--block-s", type=float, default=0.3)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rates", default="0.4,0.55", help="million rows a second, by commas")
    given = parser.parse_args(words)
    os.environ[data_workers.WORKERS_VARIABLE] = "processes"
    data_workers.usable_cores = lambda root="/": float(given.workers)  # noqa: ARG005
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "clicks"
        clicks.write(data, given.rows, group_rows=_GROUP_ROWS, with_ids=False, processes=1)
        for rate in map(float, given.rates.split(",")):
            for way, prefetch_bytes in _WAYS.items():
                waited, seconds = stalls(data, given.block_s, 1e6 * rate, prefetch_bytes)
                print(f"{rate} M rows/s, blocks ahead {way}: waited {waited:.2f} of {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
