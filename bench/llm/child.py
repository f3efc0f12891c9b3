"""One system's turn, in a process of its own, in the system's environment.

python -m bench.llm.child SYSTEM SETTING.json ANSWER.json
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch

from bench.llm.setting import LlmSetting


def main() -> None:
    system, given, answer = sys.argv[1:]
    setting = LlmSetting(**json.loads(Path(given).read_text()))
    torch.set_num_threads(1)
    torch.manual_seed(7)
    run = importlib.import_module(f"bench.llm.systems.{system}").run
    try:
        # The probe ends this process at the last step.
        run(setting, answer)
        found = {"error": f"the training ended before step {setting.steps}"}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a system that fails is reported as such
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    mine = Path(f"{answer}.{setting.rank}")
    if not mine.exists():
        mine.write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
