"""Cost of the order at 10^10 rows in 10^6 row groups: time per batch, and memory.

python -m bench.own.plan --json plan.json [--quick]

The manifest is simulated: no file exists. Batches are for one rank that owns 16 lanes.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import forebay as fb
from bench.own.verdict import Figure, main, measure
from bench.processes import peak_bytes
from forebay.data.manifest.manifest import Field, File, Manifest

ROWS_PER_GROUP = 10_000
GROUPS_PER_FILE = 100
MOST_BYTES = 200e6
MOST_GROWTH = 1.5
BATCH = 8192
LANES = 16  # Lanes of one rank. bench.own.lanes measures more of them.


def simulated(row_groups: int) -> Manifest:
    """Manifest of `row_groups` row groups of 10,000 rows, a few more or less."""
    index = np.arange(row_groups)
    files = -(-row_groups // GROUPS_PER_FILE)
    return Manifest(
        root="/simulated",
        files=tuple(File(path=f"part-{number:08d}.parquet", size=1 << 30, mtime_ns=number) for number in range(files)),
        fields=(Field(name="x", type="float"),),
        columns=("x",),
        file_of=index // GROUPS_PER_FILE,
        group_of=index % GROUPS_PER_FILE,
        rows=ROWS_PER_GROUP + index % 7 - 3,
        bytes=np.full(row_groups, 40_000),
        source_bytes=np.full(row_groups, 20_000),
    )


def order(row_groups: int, batches: dict[str, int]) -> dict[str, Any]:
    """Seconds to build the plan, seconds per batch by batch size, and peak bytes of all of it."""
    fb.build_plan(simulated(100)).batch(0, 0, BATCH)  # Imports and compiles the kernels.
    before = _resident_bytes()
    manifest = simulated(row_groups)
    start = time.perf_counter()
    plan = fb.build_plan(manifest, lanes=LANES)
    built = time.perf_counter()
    plan.batch(0, plan.num_rows // 2, BATCH)
    first = time.perf_counter()
    per_batch = {size: _seconds_per_batch(plan, int(size), count) for size, count in batches.items()}
    return {
        "rows": plan.num_rows,
        "build_s": built - start,
        "first_s": first - built,
        "per_batch_s": per_batch,
        "bytes": peak_bytes() - before,
    }


def _seconds_per_batch(plan: fb.Plan, size: int, count: int) -> float:
    """Seconds per batch, over consecutive batches in the middle of epoch 0. Its lanes are ordered by then."""
    position = plan.num_rows // 2
    start = time.perf_counter()
    for number in range(count):
        rows = plan.batch(0, position + number * size, size, last="drop")
        assert len(rows.row) == size
    return (time.perf_counter() - start) / count


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def figures(folder: Path, quick: bool) -> list[Figure]:  # noqa: ARG001 - no file is written
    """Cost per batch by batch size and by rows, and memory."""
    sizes = (100, 1_000) if quick else (10_000, 100_000, 1_000_000)
    rounds, batch_sizes = (1, (8192, 32_768)) if quick else (5, (8192, 65_536, 131_072))
    batches = {str(size): (1 << 17) // size * (1 if quick else 16) for size in batch_sizes}
    runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            runs[size].append(measure(__spec__.name, "order", row_groups=size, batches=batches))
    return [*_costs(runs, [str(size) for size in batch_sizes]), _memory(runs[sizes[-1]])]


def _costs(runs: dict[int, list[dict[str, Any]]], batch_sizes: list[str]) -> list[Figure]:
    smallest, largest = min(runs), max(runs)
    cost = {
        (groups, size): statistics.median(run["per_batch_s"][size] for run in runs[groups])
        for groups in runs
        for size in batch_sizes
    }
    growth = cost[largest, str(BATCH)] / cost[smallest, str(BATCH)]
    by_rows = ", ".join(
        f"{1e6 * cost[groups, str(BATCH)]:.0f} us at {runs[groups][0]['rows']:.3g} rows" for groups in runs
    )
    low, high = batch_sizes[0], batch_sizes[-1]
    exponent = math.log(cost[largest, high] / cost[largest, low]) / math.log(int(high) / int(low))
    by_size = ", ".join(f"{1e6 * cost[largest, size]:.0f} us for {size}" for size in batch_sizes)
    one = runs[largest]
    parts = {part: statistics.median(run[part] for run in one) for part in ("build_s", "first_s")}
    return [
        Figure(
            figure=f"plan: cost per batch of {BATCH}, {largest // smallest} times as many row groups",
            target=f"<= {MOST_GROWTH}",
            measured=growth,
            unit="x",
            passed=growth <= MOST_GROWTH,
            note=f"{by_rows}; plan built in {parts['build_s']:.2f} s, first batch in {parts['first_s']:.2f} s",
        ),
        Figure(
            figure=f"plan: cost grows as the batch to the power of, at {one[0]['rows']:.3g} rows",
            target="<= 1.1",
            measured=exponent,
            unit="",
            passed=exponent <= 1.1,
            note=by_size,
        ),
    ]


def _memory(runs: list[dict[str, Any]]) -> Figure:
    most = max(run["bytes"] for run in runs)
    return Figure(
        figure=f"plan: memory of manifest, plan and epoch at {runs[0]['rows']:.3g} rows",
        target=f"< {MOST_BYTES / 1e6:.0f}",
        measured=most / 1e6,
        unit="MB",
        passed=most < MOST_BYTES,
        note="the most at any moment, beyond the imports",
    )


if __name__ == "__main__":
    main(figures, {"order": order})
