"""One system of the sequence bench in this process. Started by the bench, in the system's environment.

python -m bench.sequences.child REQUEST.json ANSWER.json

A request names a system, its setting, and an action. "prepare" makes what later processes find in the work folder.
"measure" takes batches for some seconds and counts windows, bytes, CPU time and private memory.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bench.loader.consumer import touch
from bench.processes import answer_and_exit
from bench.sequences.memory import cpu_seconds, family, private_bytes, used_bytes
from bench.sequences.setting import SequenceSetting

_WARM_UP_S = 2.0
"""Time after the first batch that is not counted: the batches that were made ahead would count as fast ones."""


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    # A system that needs more fails with an error, and not the machine.
    resource.setrlimit(resource.RLIMIT_DATA, (request["memory_bytes"], request["memory_bytes"]))
    answer_and_exit(Path(sys.argv[2]), lambda: _within_memory(request))


def _within_memory(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _answer(request)
    except MemoryError as error:
        limit = request["memory_bytes"] / 1e9
        return {"error": f"needs more than {limit:.0f} GB of memory in one process ({error or 'MemoryError'})"[:300]}


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    paths = {name: Path(request["setting"][name]) for name in ("data", "flat", "work")}
    setting = SequenceSetting(**request["setting"] | paths)
    began = time.perf_counter()
    system = importlib.import_module(f"bench.sequences.systems.{request['system']}")
    import_s = time.perf_counter() - began
    if request["action"] == "prepare":
        began = time.perf_counter()
        system.prepare(setting)
        return {"prepare_s": time.perf_counter() - began}
    return measure(system, setting, request["seconds"]) | {"import_s": import_s, "facts": asdict(system.facts(setting))}


def measure(system: ModuleType, setting: SequenceSetting, seconds: float) -> dict[str, Any]:
    """Take batches for `seconds` seconds, as fast as they come, and touch every byte.

    `first_batch_s` is from the first line of the user's code after the imports. `used_bytes`, at the end, is of all
    processes, beyond what this one held after its imports. `worker_bytes` is what the largest worker holds alone.
    """
    imported = used_bytes([os.getpid()])
    began = time.perf_counter()
    batches: Iterator[Mapping[str, np.ndarray]] = iter(system.batches(setting))
    _ = touch(next(batches))
    first_batch_s = time.perf_counter() - began
    while time.perf_counter() - began < first_batch_s + _WARM_UP_S:
        touch(next(batches))
    cpu, start = cpu_seconds(family()), time.perf_counter()
    windows = num_bytes = 0
    while time.perf_counter() - start < seconds:
        batch = next(batches)
        touch(batch)
        arrays = [np.asarray(array) for array in batch.values()]
        windows += len(arrays[0])
        num_bytes += sum(array.nbytes for array in arrays)
        del batch, arrays  # A loader may reuse its memory.
    took_s = time.perf_counter() - start
    own, *workers = family()
    return {
        "first_batch_s": first_batch_s,
        "windows_per_s": windows / took_s,
        "window_bytes": num_bytes / windows,
        "cpu_us_per_window": (cpu_seconds([own, *workers]) - cpu) / windows * 1e6,
        "used_bytes": used_bytes([own, *workers]) - imported,
        "worker_bytes": max(map(private_bytes, workers), default=0),
        "workers": len(workers),
    }


if __name__ == "__main__":
    main()
