"""One run of one system's job in this process. Started by the bench.

python -m bench.preparation.child SYSTEM SETTING.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import ray

from bench.preparation.setting import PreparationSetting
from bench.processes import answer_and_exit

_OBJECT_STORE_BYTES = 2 << 30


def main() -> None:
    setting = PreparationSetting(**json.loads(Path(sys.argv[2]).read_text()))
    answer_and_exit(Path(sys.argv[3]), lambda: _run_job(sys.argv[1], setting))


def _run_job(system: str, setting: PreparationSetting) -> dict[str, Any]:
    # One CPU for the worker, the others for Ray Data.
    ray.init(
        address="local",
        num_cpus=1 + setting.threads,
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    module = importlib.import_module(f"bench.preparation.systems.{system}")
    answer = module.run_job(setting) | {"ended": time.time(), "facts": asdict(module.facts(setting))}
    return answer | {"cpu_s": _cpu_seconds()}


def _cpu_seconds() -> float:
    """CPU seconds of this process and all that it started, those that ended included."""
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


if __name__ == "__main__":
    main()
