"""Cost of a mixture: eight cached datasets through one loader, beside one dataset of the same rows.

    python -m bench.own.mixture --json mixture.json [--quick]

Both read the same cached blocks: the eight datasets are the files of the one. Each row comes once per epoch, and no
byte of a batch is touched, so that nothing but the loader is measured. Processor time of the whole process is measured
beside the time on the clock, since other work on the machine does not count in it.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import forebay as fb
from bench.loader.data import FILES, make
from bench.own.verdict import Figure, interleaved, main, measure, spread
from forebay.data.plan.order import Order

LEAST_RATE = 0.9
MOST_FIRST = 2.0
GLOBAL_BATCH = 8192
EPOCHS = 5
ORDERS = ("one", "mixed")


def plan_of(manifest: fb.Manifest, order: str) -> Order:
    """Plan of all rows, or mixture of the plans of each file, with the weights of their sizes."""
    if order == "one":
        return fb.build_plan(manifest)
    parts = {
        f"file {number}": fb.build_plan(manifest.take(np.flatnonzero(manifest.file_of == number).tolist()))
        for number in range(len(manifest.files))
    }
    return fb.Mixture(parts, until="once")


def loader_of(plan: Order, manifest: fb.Manifest, cache: str, **options: Any) -> fb.Loader:
    """Loader through a cache. All datasets have this transform."""
    names = [name for name in manifest.columns if name != "label"]
    transform = fb.Transform(x=fb.Dense(names), label=fb.Label("label"))
    disk = fb.DiskCache(cache, quota_bytes=16 << 30, min_free_bytes=0)
    return fb.Loader(plan, transform, disk, global_batch=GLOBAL_BATCH, **options)


def epochs(data: str, cache: str, order: str, count: int) -> dict[str, float]:
    """Seconds of `count` epochs that follow a first one, on the clock and of all cores, and their rows."""
    manifest = fb.scan(data)
    plan = plan_of(manifest, order)
    with loader_of(plan, manifest, cache, epochs=count + 1) as loader:
        for _ in loader:
            pass
        clock, busy, rows = time.perf_counter(), time.process_time(), 0
        for _ in range(count):
            rows += sum(batch.num_rows for batch in loader)
        found = {"wall_s": time.perf_counter() - clock, "cpu_s": time.process_time() - busy, "rows": rows}
        assert rows == count * plan.num_rows
    return found


def first_batch(data: str, cache: str, order: str) -> dict[str, float]:
    """Seconds from building the plan to the first batch, with a full cache. The kernels are compiled before."""
    manifest = fb.scan(data)
    with loader_of(plan_of(manifest.take([0]), "one"), manifest, cache) as loader:
        next(iter(loader))
    clock, busy = time.perf_counter(), time.process_time()
    with loader_of(plan_of(manifest, order), manifest, cache) as loader:
        next(iter(loader))
        found = {"wall_s": time.perf_counter() - clock, "cpu_s": time.process_time() - busy}
        assert not loader.counters["parquet_opens"], "the cache was not warm"
    return found


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Throughput and first batch of the mixture, against the one dataset."""
    rows, rounds = (20_000, 1) if quick else (1_000_000, 7)
    places = {"data": str(make("dense", folder, rows=rows)), "cache": str(folder / "cache")}
    speed = _measured("epochs", rounds, count=1 if quick else EPOCHS, **places)
    first = _measured("first_batch", rounds, **places)
    rate = statistics.median(one["rows"] / one["wall_s"] for one in speed["mixed"])
    what = f"{FILES} cached datasets mixed, against one of the same rows"
    return [
        _figure(f"{what}: rows/s", speed, ("one", "mixed"), "wall_s", LEAST_RATE, f"{rate / 1e6:.3g} M rows/s"),
        _figure(f"{what}: rows per processor second", speed, ("one", "mixed"), "cpu_s", None),
        _figure(f"{what}: time to first batch", first, ("mixed", "one"), "wall_s", MOST_FIRST),
        _figure(f"{what}: processor time to first batch", first, ("mixed", "one"), "cpu_s", None),
    ]


Runs = dict[str, list[dict[str, float]]]


def _measured(name: str, rounds: int, **arguments: Any) -> Runs:
    """Answers of a measurement for both orders, in turn."""
    found: Runs = {order: [] for order in ORDERS}

    def run(order: str) -> float:
        found[order].append(measure(__spec__.name, name, order=order, **arguments))
        return found[order][-1]["wall_s"]

    interleaved(ORDERS, rounds, run)
    return found


def _figure(
    name: str, runs: Runs, above_below: tuple[str, str], clock: str, bound: float | None, note: str = ""
) -> Figure:
    """Median over the rounds of the time of one order over the other's."""
    above, below = ([one[clock] for one in runs[order]] for order in above_below)
    ratios = [over / under for over, under in zip(above, below, strict=True)]
    ratio, is_least = statistics.median(ratios), above_below[0] == "one"
    target = "-" if bound is None else f"{'>=' if is_least else '<='} {bound}"
    passed = None if bound is None else (ratio >= bound if is_least else ratio <= bound)
    seconds = "; ".join(f"{order} {statistics.median(one[clock] for one in runs[order]):.3g} s" for order in ORDERS)
    notes = [f"{spread(ratios)} in {len(ratios)} rounds", seconds, *([note] if note else [])]
    return Figure(figure=name, target=target, measured=ratio, unit="x", passed=passed, note="; ".join(notes))


if __name__ == "__main__":
    main(figures, {"epochs": epochs, "first_batch": first_batch})
