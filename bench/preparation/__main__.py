"""Preparation bench: one job that prepares and trains, run twice, for Forebay and for Ray Data feeding Ray Train.

    make bench-preparation
    make bench-preparation BENCH_ARGS="--rows 100000 --repeats 1"

Each run is a process of its own, with its own Ray. Systems take turns, so that a disturbance of the machine affects all
of them. The data come from a local S3 server that counts the bytes it sends. Writes preparation.md and .json to
docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from bench.machine import machine
from bench.preparation.data import make_tables
from bench.preparation.report import report, summary
from bench.preparation.setting import PreparationSetting
from bench.preparation.turn import PreparationEntry, take_turn
from bench.processes import REPOSITORY
from bench.sweep.source import serving

ROWS = 300_000
ENTRIES = (
    PreparationEntry("Forebay", "forebay_prepared", ours=True),
    PreparationEntry("Ray Data into Ray Train", "ray_train"),
    PreparationEntry("Ray Data into Ray Train, materialized", "ray_train", "materialized"),
)


def main() -> None:
    given = _options()
    # The run in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    started, ran_on = time.time(), machine()
    folder = make_tables(given.data, given.rows)
    entries = [entry for entry in ENTRIES if given.systems in entry.name.lower()]
    results = []
    with serving(given.data) as source:
        setting = PreparationSetting(
            endpoint=source.endpoint,
            prefix=folder.name,
            files=sorted(path.name for path in folder.glob("clicks-*.parquet")),
            rows=given.rows,
            folder="",
            epochs=given.epochs,
        )
        for repeat in range(given.repeats):
            for entry in entries:
                print(f"round {repeat + 1}/{given.repeats}: {entry.name}", flush=True)
                answer = take_turn(source, entry, setting)
                results.append({"name": entry.name, "ours": entry.ours, "repeat": repeat} | answer)
                print(f"   {summary(results[-1])}", flush=True)
    document = {
        "machine": ran_on,
        "options": {name: getattr(given, name) for name in ("rows", "repeats", "epochs")},
        "data_bytes": sum(path.stat().st_size for path in folder.glob("*.parquet")),
        "took_s": time.time() - started,
        "results": results,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "preparation.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.out / "preparation.md").write_text(report(document))
    print(f"{given.out}/preparation.md, .json after {(time.time() - started) / 60:.0f} minutes")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--systems", default="", help="only those with this in their name, lower case")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "bench")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
