"""Resident memory of a trainer at two sizes of its dataset.

python -m bench.own.memory --json memory.json [--quick]

A process trains over a warm cache on x rows and on ten times as many. Its memory is read from /proc every few
batches (Linux only). Own memory is not backed by a file. All resident memory includes the mapped blocks, which the
kernel takes back when it needs room, and which all trainers of a node share.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

import forebay as fb
from bench.own import narrow
from bench.own.verdict import Figure, main, measure

MOST_DIFFERENCE = 0.10
GLOBAL_BATCH = 8192
PREFETCH_BYTES = 64 << 20


def fill(data: str, cache: str) -> int:
    """Cache the whole dataset. Returns its number of rows."""
    manifest = fb.scan(data)
    manifest.save(f"{data}.manifest.parquet")
    with _loader(manifest, cache, shuffle_rows=1 << 16) as loader:
        return sum(batch.num_rows for batch in loader)


def train(data: str, cache: str, shuffle_rows: int, pause_s: float) -> dict[str, float]:
    """Peak bytes of one epoch with a small model, beyond those before the first batch."""
    layers = [torch.nn.Linear(len(narrow.COLUMNS), 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    x, label = torch.randn(GLOBAL_BATCH, len(narrow.COLUMNS)), torch.ones(GLOBAL_BATCH)
    manifest = fb.Manifest.load(f"{data}.manifest.parquet")

    def step(x: torch.Tensor, label: torch.Tensor) -> None:
        torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), label).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        step(x, label)
    before, most = _resident(), {"own": 0.0, "all": 0.0}
    with _loader(manifest, cache, shuffle_rows=shuffle_rows) as loader:
        for number, batch in enumerate(loader):
            step(batch["x"], batch["label"])
            time.sleep(pause_s)  # Slower than the gather, so that the loader prepares as far ahead as it may.
            if number % 16 == 0:
                now = _resident()
                most = {name: max(most[name], now[name] - before[name]) for name in most}
    return most | {"rows": float(manifest.num_rows), "model_and_libraries": before["own"]}


def _loader(manifest: fb.Manifest, cache: str, *, shuffle_rows: int) -> fb.Loader:
    disk = fb.DiskCache(cache, quota_bytes=32 << 30, min_free_bytes=0)
    plan = fb.build_plan(manifest, shuffle_rows=shuffle_rows)
    return fb.Loader(plan, narrow.transform(), disk, global_batch=GLOBAL_BATCH, prefetch_bytes=PREFETCH_BYTES)


def _resident() -> dict[str, float]:
    """Resident bytes: those that no file backs, and all."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    pages = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return {"own": float(pages["Anonymous"]), "all": float(pages["Rss"])}


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Ratios of memory for ten times the data: own memory, and all resident memory."""
    rounds, rows, row_groups = (1, 2_000, 20) if quick else (3, 62_500, 80)
    # A window of every lane is always mapped. So a dataset that holds hardly more than that is too small for "x".
    options = {"shuffle_rows": 256 if quick else 1 << 16, "pause_s": 0.001}
    sets = {times: folder / f"times-{times}" for times in (1, 10)}
    for times, data in sets.items():
        narrow.write(data, row_groups=times * row_groups, rows=rows, per_file=row_groups)
        measure(__spec__.name, "fill", data=data, cache=f"{data}.cache")
    runs: dict[int, list[dict[str, Any]]] = {times: [] for times in sets}
    for _ in range(rounds):
        for times, data in sets.items():
            runs[times].append(measure(__spec__.name, "train", data=data, cache=f"{data}.cache", **options))
    return [_figure(name, what, runs) for name, what in (("own", "that no file backs"), ("all", "in all"))]


def _figure(name: str, what: str, runs: dict[int, list[dict[str, Any]]]) -> Figure:
    once, tenfold = (statistics.median(run[name] for run in runs[times]) for times in (1, 10))
    difference = tenfold / once - 1
    rows = [runs[times][0]["rows"] for times in (1, 10)]
    model = runs[1][0]["model_and_libraries"]
    return Figure(
        figure=f"trainer's resident memory {what}, 10x larger dataset",
        target=f"within +-{MOST_DIFFERENCE:.0%}",
        measured=100 * difference,
        unit="%",
        passed=abs(difference) <= MOST_DIFFERENCE,
        note=(
            f"{once / 2**20:.0f} MiB beyond the model at {rows[0]:.3g} rows ({rows[0] * narrow.ROW_BYTES / 2**20:.0f} "
            f"MiB), {tenfold / 2**20:.0f} MiB at {rows[1]:.3g}; libraries and model {model / 2**20:.0f} MiB"
        ),
    )


if __name__ == "__main__":
    main(figures, {"fill": fill, "train": train})
