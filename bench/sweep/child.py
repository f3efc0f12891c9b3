"""One sweep of one system in this process. Started by the bench.

python -m bench.sweep.child SYSTEM SETTING.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.sweep.setting import SweepSetting


def main() -> None:
    system, setting_path, answer_path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    setting = SweepSetting(**json.loads(setting_path.read_text()))
    answer: dict[str, Any]
    try:
        module = importlib.import_module(f"bench.sweep.systems.{system}")
        answer = module.sweep(setting) | {"facts": asdict(module.facts(setting))}
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


if __name__ == "__main__":
    main()
