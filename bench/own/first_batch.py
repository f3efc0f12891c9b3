"""Time until the first batch of a training process with a warm cache.

    python -m bench.own.first_batch --json first_batch.json [--quick]

A fresh process reads the saved manifest, builds the plan, opens the cache and takes one batch. Imports do not count.
Measured with 120 row groups of the size of the bench, and with 1,000, 10,000 and 100,000 small ones. With small ones,
only reading the manifest and planning may take longer: the first windows need the same amount of data.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import forebay as fb
from bench.loader.data import make
from bench.own import narrow
from bench.own.verdict import Figure, main, measure, spread
from forebay.runtime.metrics import Counters

MOST_S = 0.3
MOST_GROWTH = 1.5
GLOBAL_BATCH = 8192
LANES = 16  # Lanes of one rank. bench.own.lanes measures more of them.


def warm(data: str, manifest: str, cache: str) -> int:
    """Scan, save the manifest, and cache what the first batches need. Returns the number of row groups."""
    found = fb.scan(data)
    found.save(manifest)
    disk = fb.DiskCache(cache, quota_bytes=16 << 30, min_free_bytes=0)
    with fb.Loader(fb.build_plan(found, lanes=LANES), _transform(found), disk, global_batch=GLOBAL_BATCH) as loader:
        for _, _ in zip(range(40), loader, strict=False):  # More batches than a first batch prefetches.
            pass
        stored = -1
        while stored < len(disk.keys()):  # Prefetched blocks arrive later than the batches.
            stored = len(disk.keys())
            time.sleep(1.0)
    return len(found)


def first_batch(manifest: str, cache: str) -> dict[str, float]:
    """Seconds until the first batch, in total and by part. The numba kernels are compiled before."""
    names = (fb.Manifest.load, fb.build_plan, fb.DiskCache, fb.Loader, fb.Transform, Counters)
    assert all(names)
    marks = [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    found = fb.Manifest.load(manifest)
    mark()
    plan = fb.build_plan(found, lanes=LANES)
    mark()
    disk = fb.DiskCache(cache, quota_bytes=16 << 30, min_free_bytes=0)
    counters = Counters()
    with fb.Loader(plan, _transform(found), disk, global_batch=GLOBAL_BATCH, counters=counters) as loader:
        batch = next(iter(loader))
        mark()
    assert len(batch["label"]) > 0
    assert not counters["parquet_opens"], "the cache was not warm"
    parts = dict(zip(("manifest_s", "build_plan_s", "batch_s"), _steps(marks), strict=True))
    return parts | {"whole_s": marks[-1] - marks[0], "order_s": counters["plan_s"], "hits": counters["hits"]}


def _steps(marks: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]


def _transform(manifest: fb.Manifest) -> fb.Transform:
    return fb.Transform(x=fb.Dense([name for name in manifest.columns if name != "label"]), label=fb.Label("label"))


def figures(folder: Path, quick: bool) -> list[Figure]:
    """One figure per dataset, and one for the growth from the smallest to the largest of the small ones."""
    rounds = 1 if quick else 7
    wide = make("dense", folder, rows=12_000 if quick else 1_875_000, row_groups=120)
    sets = {"120 row groups": wide}
    for row_groups in (100, 400) if quick else (1_000, 10_000, 100_000):
        sets[f"{row_groups:,} small row groups"] = narrow.write(
            folder / f"narrow-{row_groups}", row_groups=row_groups, rows=100 if quick else 1_000
        )
    places = {name: {"manifest": f"{data}.manifest.parquet", "cache": f"{data}.cache"} for name, data in sets.items()}
    for name, data in sets.items():
        measure(__spec__.name, "warm", data=data, **places[name])
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in sets}
    for _ in range(rounds):
        for name in sets:
            seen[name].append(measure(__spec__.name, "first_batch", **places[name]))
    found = [_figure(name, runs, held_to_it=name == "120 row groups") for name, runs in seen.items()]
    small, *_, large = (runs for name, runs in seen.items() if "small" in name)
    return [*found, _growth(small, large)]


def _figure(name: str, runs: list[dict[str, Any]], *, held_to_it: bool) -> Figure:
    median = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    return Figure(
        figure=f"time to first batch, warm start, {name}",
        target=f"<= {MOST_S}" if held_to_it else "-",
        measured=median["whole_s"],
        unit="s",
        passed=median["whole_s"] <= MOST_S if held_to_it else None,
        note=(
            f"{spread([run['whole_s'] for run in runs])} of {len(runs)}; manifest {median['manifest_s']:.3f}, "
            f"plan {median['build_plan_s']:.3f} + {median['order_s']:.3f}, blocks and gather "
            f"{median['batch_s'] - median['order_s']:.3f} ({median['hits']:.0f} hits)"
        ),
    )


def _growth(small: list[dict[str, Any]], large: list[dict[str, Any]]) -> Figure:
    beyond_plan = [statistics.median(run["batch_s"] - run["order_s"] for run in runs) for runs in (small, large)]
    growth = beyond_plan[1] / beyond_plan[0]
    return Figure(
        figure="growth beyond manifest and plan, fewest to most small row groups",
        target=f"<= {MOST_GROWTH}",
        measured=growth,
        unit="x",
        passed=growth <= MOST_GROWTH,
        note=f"{beyond_plan[0]:.3f} s to {beyond_plan[1]:.3f} s",
    )


if __name__ == "__main__":
    main(figures, {"warm": warm, "first_batch": first_batch})
