"""Bench of tables: bytes, CPU time, time and memory of a step with a large table, beside dense gradients under DDP.

    make bench-tables
    make bench-tables BENCH_ARGS="--rows 1000000"

Writes tables.md and tables.json to docs/benchmarks. Needs Linux and root, for networks of its own, and 8 GB of memory.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from bench.machine import machine
from bench.processes import REPOSITORY
from bench.tables.links import require_namespaces
from bench.tables.report import report, summarized, targets, wire_error
from bench.tables.setting import TableSetting
from bench.tables.world import run_world

_WIRES = ("bfloat16", "float16")


def main() -> None:
    given = _options()
    require_namespaces()
    ran_on = machine()
    setting = TableSetting(ways=("rows", *_WIRES, "dense"), workers=2, rows=given.rows, steps=given.steps)
    two, four = run_world(setting), run_world(replace(setting, ways=("rows",), workers=4))
    found = {
        "machine": ran_on,
        "setting": asdict(setting),
        "two": {way: summarized(two, way) for way in setting.ways},
        "four": {"rows": summarized(four, "rows")},
        "trained_steps": setting.steps + 1,
        "wire_errors": {way: wire_error(two[0][way]["probe"], two[0]["rows"]["probe"]) for way in _WIRES},
    }
    for name, bound, value, met in targets(found):
        print(f"{name}: {value}, target {bound}: {'met' if met else 'missed'}")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "tables.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "tables.md").write_text(report(found))
    print(f"{given.out}/tables.md, .json")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=10, help="measured steps; dense has 3")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
