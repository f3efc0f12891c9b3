"""Run a turn of one system in this process, in the system's environment.

python -m bench.storage.s3_epoch.child REQUEST.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from bench.process_usage import cpu_s
from bench.processes import answer_and_exit
from bench.storage.s3_epoch.setting import S3Setting
from bench.storage.s3_epoch.store import counts_of, since


def turn(request: dict[str, Any]) -> dict[str, Any]:
    """Convert (no epochs), or open a system and read epochs. Counts, CPU seconds and rows of each."""
    setting = S3Setting(**request["setting"] | {"work": Path(request["setting"]["work"])})
    setting.work.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f"bench.storage.s3_epoch.systems.{request['system']}")
    parts: list[dict[str, Any]] = []
    counts, cpu = counts_of(setting.endpoint), cpu_s()
    system = module.open_system(setting) if request["epochs"] else module.convert(setting)
    for number in range(max(request["epochs"], 1)):
        rows = sum(system.epoch()) if request["epochs"] else 0
        counts_now, cpu_now = counts_of(setting.endpoint), cpu_s()
        parts.append({"epoch": number, "rows": rows, "cpu_s": cpu_now - cpu, "counts": since(counts_now, counts)})
        counts, cpu = counts_now, cpu_now
    return {"version": getattr(module.open_system, "version", ""), "parts": parts}


if __name__ == "__main__":
    asked, answer = (Path(each) for each in sys.argv[1:])
    answer_and_exit(answer, lambda: turn(json.loads(asked.read_text())))
