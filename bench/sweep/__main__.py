"""Sweep bench: source bytes and wall time of eight trials over one dataset, for Forebay and its peers.

    make bench-sweep
    make bench-sweep BENCH_ARGS="--rows 50000 --repeats 1"

Each sweep is a process of its own, with its own Ray if it uses Ray. Systems take turns, so that a disturbance of the
machine affects all of them. The data come from a local S3 server that counts the bytes it sends. Writes sweep.md,
sweep.json and sweep.png to docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.loader import data
from bench.machine import machine
from bench.processes import REPOSITORY
from bench.sweep.counts import row_groups
from bench.sweep.report import plot, report, summary
from bench.sweep.setting import SweepSetting
from bench.sweep.source import Source, serving
from bench.sweep.turn import SweepEntry, turn
from bench.venvs import interpreters

ROWS, ROW_GROUPS = 250_000, 32
MANY_ROWS, MANY_ROW_GROUPS, MANY_TRIALS = 32_000, 16, (1, 4, 8, 16)


ENTRIES = (
    SweepEntry("Forebay", "forebay_sweep", "local", ours=True),
    SweepEntry("Ray Data in each trial", "ray_tune", "", "ray"),
    SweepEntry("Ray Data in each trial, materialized", "ray_tune", "materialized", "ray"),
    SweepEntry("petastorm in each trial", "petastorm_trials", "", "petastorm-s3"),
    SweepEntry("petastorm in each trial, disk cache", "petastorm_trials", "cache", "petastorm-s3"),
    SweepEntry("Ray Data materialized once for all", "ray_tune", "shared", "ray"),
    SweepEntry("Forebay, nested Ray Train", "forebay_sweep", "ray", ours=True, once=True),
)


def main() -> None:
    given = _options()
    # The sweep in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    started, ran_on = time.time(), machine()
    entries = [entry for entry in ENTRIES if not given.systems or given.systems in entry.system + entry.name.lower()]
    pythons, results = _environments(entries, given.cache / "venvs")
    folder = data.make("dense", given.data, rows=given.rows, row_groups=ROW_GROUPS)
    with serving(given.data) as source:
        turns = [
            (repeat, entry)
            for repeat in range(given.repeats)
            for entry in entries
            if entry.venv in pythons and (repeat == 0 or not entry.once)
        ]
        for number, (repeat, entry) in enumerate(turns):
            print(f"{number + 1}/{len(turns)} {entry.name}", flush=True)
            setting = _setting(source, folder, given.rows, given)
            answer = turn(source, entry, setting, row_groups(folder), pythons[entry.venv])
            results.append({"name": entry.name, "ours": entry.ours, "repeat": repeat} | answer)
            print(f"   {summary(results[-1])}", flush=True)
        many = _many(source, given) if "forebay" in "".join(entry.system for entry in entries) else []
    document = {
        "machine": ran_on,
        "options": {name: getattr(given, name) for name in ("rows", "repeats", "trials", "concurrent", "epochs")},
        "data_bytes": sum(path.stat().st_size for path in folder.glob("*.parquet")),
        "row_groups": ROW_GROUPS,
        "took_s": time.time() - started,
        "results": results,
        "many": many,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "sweep.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.out / "sweep.md").write_text(report(document))
    plot(document, given.out / "sweep.png")
    print(f"{given.out}/sweep.md, .json, .png after {(time.time() - started) / 60:.0f} minutes")


def _many(source: Source, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Number of reads and transforms of Forebay for more and more trials. A small dataset is enough."""
    folder = data.make("dense", given.data, rows=MANY_ROWS, row_groups=MANY_ROW_GROUPS)
    setting = _setting(source, folder, MANY_ROWS, given)
    found = []
    for what, trials, variant in (
        *((f"{trials} trial{'s' if trials > 1 else ''}, one transform", trials, "local") for trials in MANY_TRIALS),
        ("4 trials, two transforms", 4, "two transforms"),
    ):
        entry = SweepEntry(what, "forebay_sweep", variant)
        told = SweepSetting(**asdict(setting) | {"trials": trials, "concurrent": min(trials, 4), "epochs": 2})
        print(f"   Forebay: {what}", flush=True)
        answer = turn(source, entry, told, row_groups(folder), Path(sys.executable))
        found.append({"what": what, "trials_asked": trials} | answer)
        print(f"   {summary(found[-1])}", flush=True)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--concurrent", type=int, default=2, help="trials at a time")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--systems", default="", help="only those with this in their name, lower case")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "bench")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/forebay-bench").expanduser())
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


def _setting(source: Source, folder: Path, rows: int, given: argparse.Namespace) -> SweepSetting:
    groups = row_groups(folder)
    return SweepSetting(
        endpoint=source.endpoint,
        prefix=folder.name,
        files=sorted(path.name for path in folder.glob("*.parquet")),
        rows=rows,
        row_group_bytes=max(group.stop - group.start for group in groups),
        folder="",
        trials=given.trials,
        concurrent=given.concurrent,
        epochs=given.epochs,
    )


def _environments(entries: list[SweepEntry], folder: Path) -> tuple[dict[str, Path], list[dict[str, Any]]]:
    """Environment -> its Python, and the entries whose environment is missing."""
    pythons, failed = interpreters((entry.venv for entry in entries), folder)
    return pythons, [
        {"name": entry.name, "ours": entry.ours, "repeat": 0, "error": failed[entry.venv]}
        for entry in entries
        if entry.venv in failed
    ]


if __name__ == "__main__":
    main()
