"""Run cases in this process, which a case may kill: `python main.py TARGET FOLDER SEED FIRST COUNT`.

Prints `begin N` before a case and `end N JSON` after it, so that the parent process knows which case killed it.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import resource
import sys
import time
import traceback
from pathlib import Path

import numpy as np

TARGETS = {"parquet": "parquet:Parquet", "cached": "cached:Cached", "saved": "saved:Saved"}
MOST_MORE_BYTES = 6 << 30
MOST_RESIDENT_BYTES = 512 << 20
MOST_S = 10.0


def main(target: str, folder: str, seed: int, first: int, count: int) -> None:
    faulthandler.enable()
    logging.disable()
    module, _, name = TARGETS[target].partition(":")
    Path(folder).mkdir(parents=True, exist_ok=True)
    cases = getattr(importlib.import_module(module), name)(Path(folder))
    limit = status("VmSize") + MOST_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, first + count):
        print("begin", number, flush=True)
        print("end", number, json.dumps(run(cases, np.random.default_rng([seed, number]))), flush=True)


def run(cases: object, rng: np.random.Generator) -> dict[str, str]:
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before, start = status("VmRSS"), time.process_time()
    try:
        damage, outcome = cases.run(rng)
    except Exception as error:  # noqa: BLE001 - which one it is, is what a fault tells
        return {"damage": "", "fault": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    grown, took_s = status("VmHWM") - before, time.process_time() - start
    if grown > MOST_RESIDENT_BYTES:
        return {"damage": damage, "fault": f"took {grown >> 20} MiB", "trace": ""}
    if took_s > MOST_S:
        return {"damage": damage, "fault": f"took {took_s:.0f} s", "trace": ""}
    return {"damage": damage, "outcome": outcome}


def status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
