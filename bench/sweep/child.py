"""One sweep of one system in this process. Started by the bench.

python -m bench.sweep.child SYSTEM SETTING.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.processes import answer_and_exit
from bench.sweep.setting import SweepSetting


def main() -> None:
    setting = SweepSetting(**json.loads(Path(sys.argv[2]).read_text()))
    answer_and_exit(Path(sys.argv[3]), lambda: _sweep(sys.argv[1], setting))


def _sweep(system: str, setting: SweepSetting) -> dict[str, Any]:
    module = importlib.import_module(f"bench.sweep.systems.{system}")
    return module.sweep(setting) | {"facts": asdict(module.facts(setting))}


if __name__ == "__main__":
    main()
