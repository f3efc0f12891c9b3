"""Turns of a system: child processes with a setting, and their answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.llm.setting import LlmSetting
from bench.loader.peers import OWN
from bench.processes import command, environment, last_line, run_child


@dataclass(frozen=True)
class LlmEntry:
    """One row of the table: its file in `bench/llm/systems/`, the variant, and its environment.

    `launches` says whether several processes are started by the system itself.
    """

    name: str
    system: str
    variant: str = ""
    venv: str = OWN
    launches: bool = False


FOREBAY = LlmEntry("Forebay, packed", "forebay_packed", launches=True)
ROWS = LlmEntry("HF Trainer, Forebay's rows", "trainer", "rows", "trl")
PADDED = LlmEntry("HF Trainer, padded", "trainer", "", "trl")
GROUPED = LlmEntry("HF Trainer, padded, by length", "trainer", "grouped", "trl")
TRL = LlmEntry("TRL, packed", "trl_packed", "", "trl")
TORCHTUNE = LlmEntry("torchtune parts, Forebay's rows", "torchtune_rows", "", "torchtune")
FACTORY = LlmEntry("LLaMA-Factory, neat packing", "llamafactory_packed", "", "llamafactory")
AXOLOTL = LlmEntry("axolotl, sample packing", "axolotl_packed", "", "axolotl")
ENTRIES = (FOREBAY, ROWS, PADDED, GROUPED, TRL, TORCHTUNE, FACTORY, AXOLOTL)


def take_turn(entry: LlmEntry, python: Path, setting: LlmSetting, limit_s: float) -> list[dict[str, Any]]:
    """Answers of all ranks of one turn. A turn that fails has one answer with `error`."""
    given = replace(setting, variant=entry.variant)
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        answer = Path(folder) / "answer"
        starts = 1 if entry.launches else given.processes
        outputs = [Path(folder) / f"output.{rank}" for rank in range(starts)]
        path = Path(folder) / "setting.json"
        path.write_text(json.dumps(asdict(replace(given, began=time.time()))))
        line = command("bench.llm.child", entry.system, path, answer, python=python)
        _run(line, outputs, limit_s)
        found = [Path(f"{answer}.{rank}") for rank in range(given.processes)]
        missing = [rank for rank, each in enumerate(found) if not each.exists()]
        if missing:
            _keep(outputs, entry)
            return [{"error": f"rank {missing[0]} gave no answer; last words: {last_line(outputs[0])}"}]
        answers: list[dict[str, Any]] = [json.loads(each.read_text()) for each in found]
        errors = [each for each in answers if "error" in each]
        if errors:
            _keep(outputs, entry)
        return errors or answers


def _run(line: Sequence[str], outputs: Sequence[Path], limit_s: float) -> None:
    variables = environment("RAY_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    variables |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    variables |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "WANDB_MODE": "disabled"}
    variables |= {"DO_NOT_TRACK": "1", "AXOLOTL_DO_NOT_TRACK": "1", "DISABLE_VERSION_CHECK": "1"}
    if len(outputs) == 1:
        run_child(line, outputs[0], variables, limit_s)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    variables |= {"WORLD_SIZE": str(len(outputs)), "LOCAL_WORLD_SIZE": str(len(outputs))}
    threads = [
        threading.Thread(
            target=run_child, args=(line, output, variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, limit_s)
        )
        for rank, output in enumerate(outputs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _keep(outputs: Sequence[Path], entry: LlmEntry) -> None:
    """Keep the output of a turn that failed where it can be read."""
    folder = Path(tempfile.gettempdir()) / f"forebay-bench-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for output in outputs:
        if output.exists():
            shutil.copy(output, folder / f"{entry.system}{entry.variant}-{output.name}.log")
