"""One run of one system's job in this process. Started by the bench.

python -m bench.preparation.child SYSTEM SETTING.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import ray

from bench.preparation.setting import PreparationSetting

_OBJECT_STORE_BYTES = 2 << 30


def main() -> None:
    system, setting_path, answer_path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    setting = PreparationSetting(**json.loads(setting_path.read_text()))
    answer: dict[str, Any]
    try:
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
        answer["cpu_s"] = _cpu_seconds()
    except Exception as error:  # noqa: BLE001 - a system that fails is reported as such, whatever it raised
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    draft = answer_path.with_suffix(".draft")
    draft.write_text(json.dumps(answer))
    draft.rename(answer_path)
    # The bench ends everything that still runs. The answer is written by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _cpu_seconds() -> float:
    """CPU seconds of this process and all that it started, those that ended included."""
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


if __name__ == "__main__":
    main()
