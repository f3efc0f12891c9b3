"""Lists of very different lengths, padded and without padding: bytes in the cache, and the cost of a batch.

    python -m bench.lists [rows]

Lengths follow a power law of mean 8 and at most 200. Kinds are measured in turn, three times each, from a warm cache.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time, thread_time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import forebay as fb

MOST = 200
MEAN = 8.0
GLOBAL_BATCH = 8192
ROUNDS = 3
KINDS = {
    "padded": fb.Ragged("items", max_len=MOST),
    "not padded": fb.Ragged("items", padded=False),
}


def lengths_of(rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Lengths from 1 to `MOST`, with probabilities `length ** -exponent` of mean `MEAN`."""
    sizes = np.arange(1, MOST + 1)
    low, high = 1.0, 3.0
    for _ in range(60):
        exponent = (low + high) / 2
        mean = (sizes * sizes**-exponent).sum() / (sizes**-exponent).sum()
        low, high = (exponent, high) if mean > MEAN else (low, exponent)
    chances = sizes**-exponent
    return np.random.default_rng(0).choice(sizes, rows, p=chances / chances.sum())


def write(folder: Path, rows: int) -> None:
    """Write the dataset: an id and a list of int64 in each row, in row groups of 50,000 rows."""
    lengths = lengths_of(rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.random.default_rng(1).integers(0, 1 << 40, offsets[-1])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    pq.write_table(pa.table({"id": np.arange(rows), "items": lists}), folder / "a.parquet", row_group_size=50_000)


@dataclass
class EpochCost:
    """Sums over the batches of an epoch."""

    loading_s: float = 0.0
    """CPU seconds of all threads, but for the calls of `fb.bridges.jagged`."""
    jagged_s: float = 0.0
    """CPU seconds of these."""
    batches: int = 0
    nbytes: int = 0


def epoch(loader: fb.Loader) -> EpochCost:
    """Take the lists of each batch of an epoch as values and lengths."""
    cost, start = EpochCost(), process_time()
    for batch in loader:
        begin = thread_time()
        fb.bridges.jagged(batch, "items")
        cost.jagged_s += thread_time() - begin
        cost.batches += 1
        cost.nbytes += sum(array.nbytes for array in batch.values())
    cost.loading_s = process_time() - start - cost.jagged_s
    return cost


def measure(folder: Path, rows: int) -> None:
    """Print bytes of the cache and of batches, and CPU seconds, of each kind."""
    write(folder, rows)
    torch.set_num_threads(1)
    plan = fb.build_plan(fb.scan(str(folder / "a.parquet")), seed=0)
    loaders, first = {}, {}
    for kind, feature in KINDS.items():
        cache = fb.DiskCache(folder / kind, quota_bytes=8 << 30)
        transform = fb.Transform(id=fb.Label("id", dtype="int64"), items=feature)
        loaders[kind] = fb.Loader(plan, transform, cache, global_batch=GLOBAL_BATCH)
        first[kind] = epoch(loaders[kind])
    costs: dict[str, list[EpochCost]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, loader in loaders.items():
            costs[kind].append(epoch(loader))
    print("bytes of a row in the cache, in batches; CPU ms of a batch: loading, jagged; CPU s of the first epoch")
    for kind, each in costs.items():
        loaders[kind].close()
        stored = sum(file.stat().st_size for file in (folder / kind).rglob("*.block"))
        ms = 1000 / each[0].batches
        print(
            f"{kind:12} {stored / rows:7.1f} {each[0].nbytes / rows:7.1f}; "
            f"{ms * median(cost.loading_s for cost in each):.2f} {ms * median(cost.jagged_s for cost in each):.2f}; "
            f"{first[kind].loading_s:.2f}"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
