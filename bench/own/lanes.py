"""Cost and benefit of lanes: the tables of ADR 0020.

python -m bench.own.lanes --json lanes.json [--quick]

Costs of the order are processor seconds, so that other work on the machine does not count. The manifests of the order
are simulated. First batches are read from real files by a fresh process, with an empty cache and with a full one.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb
from bench.own.plan import simulated
from bench.own.verdict import Figure, main, measure
from bench.processes import peak_bytes
from forebay.runtime.metrics import Counters

LANES = (16, 64, 256, 1024)
GROUPS = (100, 10_000, 1_000_000)
WORLDS = (1, 3, 8, 24, 64, 100, 256, 384, 512)
BATCH = 8192
MIXED_BATCHES = 64


def order(row_groups: int, lanes: int, shuffle_rows: int | None = None) -> dict[str, Any]:
    """Measurements of one rank that owns all lanes: blocks opened by its first batch, held rows, mixing of batches."""
    fb.build_plan(simulated(100)).batch(0, 0, BATCH)  # Imports and compiles the kernels.
    plan = fb.build_plan(simulated(row_groups), lanes=lanes, shuffle_rows=shuffle_rows)
    start = time.process_time()
    plan.batch(0, 0, BATCH)
    first_s = time.process_time() - start
    rows = min(max(1 << 17, lanes << 10), plan.num_rows // 2)
    start = time.process_time()
    plan.rows(0, BATCH, BATCH + rows, range(lanes))
    chunk_s = time.process_time() - start
    blocks, need, release = _spans(plan)
    held = [
        int(plan.manifest.rows[np.unique(blocks[(need <= position) & (position < release)])].sum())
        for position in np.linspace(0, plan.num_rows * 0.9, 30)
    ]
    return {
        "shuffle_rows": plan.shuffle_rows,
        "first_ms": 1e3 * first_s,
        "row_ns": 1e9 * chunk_s / rows,
        "opened": len(np.unique(blocks[need < BATCH])),
        "held_rows": max(held),
    } | _mixing(plan)


def _spans(plan: fb.Plan) -> tuple[Any, Any, Any]:
    """Blocks of all lanes, and the positions from and until which they are needed."""
    columns = []
    for lane in range(plan.lanes):
        span = np.array(list(plan.spans(0, lane)), dtype=np.int64).reshape(-1, 3)
        columns.append(np.stack([span[:, 0], span[:, 1] * plan.lanes + lane, span[:, 2] * plan.lanes + lane]))
    block, need, release = np.concatenate(columns, axis=1)
    return block, need, release


def _mixing(plan: fb.Plan) -> dict[str, float]:
    """How batches of sorted data differ from each other, and how epochs do.

    - `spread`: standard deviation of the batches' mean place in the data, over random batches (1 is ideal).
    - `groups`: number of row groups in a batch.
    - `again`: share of rows from the start of one epoch that are also at the start of the next, over random
      orders (1 is ideal).
    """
    first_row = np.concatenate([[0], np.cumsum(plan.manifest.rows)])
    positions = np.linspace(plan.num_rows * 0.02, plan.num_rows * 0.95, MIXED_BATCHES).astype(np.int64)
    size = min(BATCH, plan.num_rows // 4)
    means, groups = [], []
    for position in positions.tolist():
        rows = plan.rows(0, position, min(position + size, plan.num_rows), range(plan.lanes))
        means.append((first_row[rows.block] + rows.row).mean() / plan.num_rows)
        groups.append(len(np.unique(rows.block)))
    ideal = 1 / np.sqrt(12 * size)
    return {"spread": float(np.std(means) / ideal), "groups": float(np.mean(groups)), "again": _again(plan)}


def _again(plan: fb.Plan) -> float:
    """Share of an epoch's first hundredth in the first four hundredths of the next one, over random orders."""
    stop = min(max(plan.num_rows // 100, 1), 1 << 22)
    wide = min(4 * stop, plan.num_rows)
    first_row = np.concatenate([[0], np.cumsum(plan.manifest.rows)])
    seen = []
    for epoch, until in ((0, stop), (1, wide)):
        rows = plan.rows(epoch, 0, until, range(plan.lanes))
        seen.append(first_row[rows.block] + rows.row)
    return float(np.isin(seen[0], seen[1]).mean() / (wide / plan.num_rows))


def evenness(lanes: int, batch: int) -> dict[str, list[float]]:
    """By world size: rows of the largest part over the mean. For lanes as they are owned, and for adjacent lanes."""
    plan = fb.build_plan(simulated(10_000), lanes=lanes)
    found: dict[str, list[float]] = {"spread": [], "neighbours": []}
    for size in WORLDS:
        if size > min(lanes, batch):
            continue
        bounds = [rank * lanes // size for rank in range(size + 1)]
        owned = {
            "spread": [plan.owned_lanes(fb.World(rank=rank, size=size)) for rank in range(size)],
            "neighbours": [tuple(range(low, high)) for low, high in pairwise(bounds)],
        }
        for kind, ranks in owned.items():
            steps = []
            for number in range(50):
                start, stop = number * batch, (number + 1) * batch
                parts = [plan.rows_before(stop, own) - plan.rows_before(start, own) for own in ranks]
                steps.append(max(parts) * size / batch)
            found[kind].append(float(np.mean(steps)))
    return found


def first_batch(data: str, cache: str, lanes: int) -> dict[str, float]:
    """Seconds until the first batch of one rank, and bytes that the process grew by."""
    manifest = fb.scan(data)
    plan = fb.build_plan(manifest, lanes=lanes)
    names = [name for name in manifest.columns if name != "label"]
    transform = fb.Transform(x=fb.Dense(names), label=fb.Label("label"))
    disk = fb.DiskCache(cache, quota_bytes=16 << 30, min_free_bytes=0)
    counters = Counters()
    before = peak_bytes()
    busy, start = time.process_time(), time.perf_counter()
    with fb.Loader(plan, transform, disk, global_batch=BATCH, counters=counters) as loader:
        next(iter(loader))
        found = {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - busy}
        blocks = counters["hits"] + counters["misses"]
    return found | {"blocks": blocks, "bytes": peak_bytes() - before}


def write(folder: Path, row_groups: int, rows: int) -> Path:
    """Write `row_groups` row groups of `rows` rows with eight numbers each, in files of 100 row groups."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    names = [f"x{number}" for number in range(8)]
    for number in range(-(-row_groups // 100)):
        columns = {name: rng.random(100 * rows, dtype=np.float32) for name in names}
        table = pa.table(columns | {"label": rng.random(100 * rows, dtype=np.float32)})
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=rows)
    return folder


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Print the tables of the ADR. Returns a figure for each row of their cells."""
    groups, lanes = ((100, 1000), (16, 64)) if quick else (GROUPS, LANES)
    found = [*_order_figures(groups, lanes), *_even_figures(lanes)]
    return [*found, *_first_figures(folder, ((100, 100),) if quick else ((100, 10_000), (10_000, 1000)), lanes)]


def _order_figures(groups: tuple[int, ...], lanes: tuple[int, ...]) -> list[Figure]:
    print("| row groups | lanes | window | opened first | held rows | first, ms | ns a row | spread | groups | again |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    found = []
    for group in groups:
        for count in lanes:
            for window in (None, 65_536) if count == max(lanes) else (None,):
                one = measure(__spec__.name, "order", row_groups=group, lanes=count, shuffle_rows=window)
                print(
                    f"| {group:,} | {count} | {one['shuffle_rows']:,} | {one['opened']:,} | {one['held_rows']:,} "
                    f"| {one['first_ms']:.0f} | {one['row_ns']:.0f} | {one['spread']:.1f} | {one['groups']:.0f} "
                    f"| {one['again']:.2f} |",
                    flush=True,
                )
                name = f"lanes: {count} lanes of {group:,} row groups, windows of {one['shuffle_rows']:,} rows"
                found.append(_figure(f"{name}: processor time of the first batch's order", one["first_ms"], "ms"))
                found.append(_figure(f"{name}: row groups that the first batch opens", one["opened"], ""))
                found.append(_figure(f"{name}: spread of batch means over random batches", one["spread"], "x"))
    return found


def _even_figures(lanes: tuple[int, ...]) -> list[Figure]:
    found = []
    print(f"\n| lanes | batch | owned as | {' | '.join(map(str, WORLDS))} |")
    print("|---|---|---|" + "---|" * len(WORLDS))
    for count in lanes:
        for batch in (300, 1500, BATCH):
            for kind, values in measure(__spec__.name, "evenness", lanes=count, batch=batch).items():
                print(f"| {count} | {batch} | {kind} | {' | '.join(f'{value:.2f}' for value in values)} |", flush=True)
                name = f"lanes: largest part over the mean, {count} lanes, batches of {batch}, {kind}"
                found.append(_figure(name, max(values), "x"))
    return found


def _first_figures(folder: Path, sizes: tuple[tuple[int, int], ...], lanes: tuple[int, ...]) -> list[Figure]:
    found = []
    print("\n| row groups | lanes | cold s | cold cpu s | warm s | warm cpu s | blocks | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for groups, rows in sizes:
        data = write(folder / f"data-{groups}", groups, rows)
        for count in lanes:
            where = {"data": str(data), "cache": str(folder / f"cache-{groups}-{count}"), "lanes": count}
            cold, warm = measure(__spec__.name, "first_batch", **where), measure(__spec__.name, "first_batch", **where)
            print(
                f"| {groups:,} | {count} | {cold['wall_s']:.2f} | {cold['cpu_s']:.2f} | {warm['wall_s']:.2f} "
                f"| {warm['cpu_s']:.2f} | {warm['blocks']:.0f} | {cold['bytes'] / 1e6:.0f} |",
                flush=True,
            )
            name = f"lanes: {count} lanes of {groups:,} row groups of {rows:,} rows: first batch"
            found += [_figure(f"{name}, cold", cold["cpu_s"], "s"), _figure(f"{name}, warm", warm["cpu_s"], "s")]
    return found


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(figure=name, target="", measured=value, unit=unit, passed=None)


if __name__ == "__main__":
    main(figures, {"order": order, "evenness": evenness, "first_batch": first_batch})
