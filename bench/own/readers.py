"""Throughput of readers in several processes on one warm cache, against the limit of all cores.

python -m bench.own.readers --json readers.json [--quick]

Each reader takes every batch of an epoch and touches every byte. The limit is the rate of one reader on one
core, times the cores. A reader alone already uses more than one core: it gathers while its trainer works.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import forebay as fb
from bench.loader.data import make
from bench.own.verdict import Figure, interleaved, main, measure, spread

LEAST_OF_LIMIT = 0.8
LEAST_OF_ONE = 0.9
GLOBAL_BATCH = 8192


def fill(data: str, cache: str) -> int:
    """Cache the whole dataset. Returns its number of rows."""
    with _loader(data, cache) as loader:
        return sum(batch.num_rows for batch in loader)


def read(data: str, cache: str, readers: int, cores: int, epochs: int, start: str) -> float:
    """Rows per second of all readers together. Each is a child by fork or spawn that receives the parent's loader."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    context: Any = multiprocessing.get_context(start)
    ready, go, times = context.Barrier(readers + 1), context.Event(), context.Queue()
    with _loader(data, cache) as loader:
        options = (loader, epochs, ready, go, times)
        processes = [context.Process(target=_read, args=options) for _ in range(readers)]
        for process in processes:
            process.start()
        ready.wait(300)
        go.set()
        spans = [times.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    rows = sum(span[2] for span in spans)
    return float(rows / (max(span[1] for span in spans) - min(span[0] for span in spans)))


def _read(loader: fb.Loader, epochs: int, ready: Any, go: Any, times: Any) -> None:
    touch_all(loader)  # One-time work of a process: mapping, verifying checksums, loading the kernels.
    ready.wait(300)
    go.wait()
    start = time.monotonic()
    rows = sum(touch_all(loader) for _ in range(epochs))
    times.put((start, time.monotonic(), rows))


def touch_all(loader: fb.Loader) -> int:
    """Read one epoch, every byte of it. Returns its number of rows."""
    rows = 0
    for batch in loader:
        for array in batch.values():
            np.add.reduce(array.numpy().reshape(-1).view(np.uint32))
        rows += batch.num_rows
    return rows


def _loader(data: str, cache: str) -> fb.Loader:
    manifest = fb.scan(data)
    disk = fb.DiskCache(cache, quota_bytes=16 << 30, min_free_bytes=0)
    columns = [name for name in manifest.columns if name != "label"]
    transform = fb.Transform(x=fb.Dense(columns), label=fb.Label("label"))
    return fb.Loader(fb.build_plan(manifest), transform, disk, global_batch=GLOBAL_BATCH)


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Four readers against the limit and against one reader, and forked readers against spawned ones."""
    rows, row_groups, rounds, epochs = (20_000, 8, 1, 1) if quick else (500_000, 32, 5, 3)
    readers = 2 if quick else 4
    data, cache = make("dense", folder, rows=rows, row_groups=row_groups), folder / "cache"
    cores = len(os.sched_getaffinity(0))
    measure(__spec__.name, "fill", data=data, cache=cache)
    cases: dict[str, dict[str, Any]] = {
        "one core": {"readers": 1, "cores": 1, "start": "spawn"},
        "one reader": {"readers": 1, "cores": cores, "start": "spawn"},
        "spawned": {"readers": readers, "cores": cores, "start": "spawn"},
        "forked": {"readers": readers, "cores": cores, "start": "fork"},
    }

    def run(name: str) -> float:
        return float(measure(__spec__.name, "read", data=data, cache=cache, epochs=epochs, **cases[name]))

    rates = interleaved(list(cases), rounds, run)

    def ratio(of: str, to: Callable[[int], float]) -> list[float]:
        return [rate / to(number) for number, rate in enumerate(rates[of])]

    found = []
    for start in ("spawned", "forked"):
        of_limit = ratio(start, lambda number: cores * rates["one core"][number])
        of_one = ratio(start, lambda number: rates["one reader"][number])
        note = f"{statistics.median(rates[start]) / 1e6:.2f} M rows/s; {{}} of {rounds}"
        found += [
            _figure(f"{readers} {start} readers, of {cores} cores x a reader on one", LEAST_OF_LIMIT, of_limit, note),
            _figure(f"{readers} {start} readers, against one reader on {cores} cores", LEAST_OF_ONE, of_one, note),
        ]
    return found


def _figure(figure: str, least: float, ratios: list[float], note: str) -> Figure:
    median = statistics.median(ratios)
    return Figure(figure, f">= {least}", median, "x", median >= least, note.format(spread(ratios)))


if __name__ == "__main__":
    main(figures, {"fill": fill, "read": read})
