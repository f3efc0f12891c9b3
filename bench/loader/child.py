"""Measure one system in this process. Started by the bench, once per run, in the system's environment.

python -m bench.loader.child REQUEST.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.loader.consumer import CONSUMERS, consume
from bench.loader.setting import LoaderSetting


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Open a system and run its phases, each a `peers.Phase`. The answer has the totals of each phase by name."""
    paths = {name: Path(request["setting"][name]) for name in ("data", "work", "converted")}
    setting = LoaderSetting(**request["setting"] | paths)
    start = time.perf_counter()
    module = importlib.import_module(f"bench.loader.systems.{request['system']}")
    imported = time.perf_counter()
    system = module.open_system(setting)
    opened = time.perf_counter()
    system.prepare()
    answer: dict[str, Any] = {
        "import_s": imported - start,
        "prepare_s": time.perf_counter() - opened,
        "facts": asdict(system.facts),
        "phases": {},
    }
    # Only Forebay counts its own work.
    counters: Callable[[], dict[str, float]] = getattr(system, "counters", dict)
    for name, epoch, consumer, num_epochs in request["phases"]:
        before = counters()
        account = consume(
            system.epoch(epoch) if num_epochs == 1 else system.epochs(epoch, num_epochs),
            CONSUMERS[consumer],
            kind=setting.kind,
            num_rows=setting.num_rows,
            limit_s=request["limit_s"],
            epochs=num_epochs,
        )
        counted = {counter: total - before.get(counter, 0) for counter, total in counters().items()}
        answer["phases"][name] = account.to_json() | {"open_s": opened - imported, "counters": counted}
    answer["close"] = system.close
    return answer


def main() -> None:
    request, answer_path = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    try:
        answer = measure(request)
        close = answer.pop("close")
    except Exception as error:  # noqa: BLE001 - a system that fails is reported as such, whatever it raised
        traceback.print_exc()
        answer, close = {"error": f"{type(error).__name__}: {error}"}, None
    answer_path.write_text(json.dumps(answer))
    if close is not None:
        close()
    # Some systems' threads never end. The results are written by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
