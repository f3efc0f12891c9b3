"""Turn of one system: a sweep in a process of its own, and the logs of the source and its trials about it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.notes import read_notes
from bench.processes import command, environment, last_line, run_child
from bench.sweep.counts import CountedRowGroup, counters
from bench.sweep.setting import SweepSetting
from bench.sweep.source import Source

_CHILD = "bench.sweep.child"
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class SweepEntry:
    """One system: its name in the document, its file in `bench/sweep/systems/`, the variant, and its environment.

    Entries with `ours` are compared with all others. Entries with `once` take part only in the first round.
    """

    name: str
    system: str
    variant: str = ""
    venv: str = ""
    ours: bool = False
    once: bool = False


def turn(
    source: Source, entry: SweepEntry, setting: SweepSetting, groups: list[CountedRowGroup], python: Path
) -> dict[str, Any]:
    """Run one sweep. Returns its wall time with the start of its process, the reads, the transforms and the trials'
    totals.
    """
    # Paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as folder:
        told = asdict(setting) | {"folder": folder, "variant": entry.variant}
        files = {what: Path(folder) / what for what in ("setting", "answer", "output")}
        files["setting"].write_text(json.dumps(told))
        # Make the same start for every system: no pending writes.
        os.sync()
        source.forget()
        began = time.time()
        line = command(_CHILD, entry.system, files["setting"], files["answer"], python=python)
        how = run_child(line, files["output"], _variables(folder), _PATIENCE_S)
        if not files["answer"].exists():
            return {"error": f"{how}; last words: {last_line(files['output'])}"}
        answer: dict[str, Any] = json.loads(files["answer"].read_text())
        if "error" in answer:
            return answer
        counted = counters(groups, source.counts(), read_notes(f"{folder}/transforms.jsonl"))
        trials = read_notes(f"{folder}/trials.jsonl")
        shutil.rmtree(folder, ignore_errors=True)
    whole = [trial for trial in trials if trial["epochs"] == setting.epochs]
    if len(whole) != setting.trials:
        return {"error": f"{len(whole)} of {setting.trials} trials went through their {setting.epochs} epochs"}
    return {
        "facts": answer["facts"],
        "wall_s": answer["ended"] - began,
        "sweep_s": answer["ended"] - answer["began"],
        "best": answer["best"],
        "read": counted.to_json(),
        "trials": trials,
    }


def _variables(folder: str) -> dict[str, str]:
    # What a Ray job or a notebook sets for its own process is not meant for another Ray in another environment.
    variables = environment("RAY_", "PYTHON", "AWS_")
    variables |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return variables | {"AWS_EC2_METADATA_DISABLED": "true", "RAY_TMPDIR": folder}
