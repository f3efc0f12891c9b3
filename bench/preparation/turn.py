"""Turn of one system: the same job twice, each run in a process of its own, and the logs about it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.notes import read_notes
from bench.preparation.setting import PreparationSetting
from bench.processes import command, environment, last_line, run_child
from bench.sweep.source import Source

_CHILD = "bench.preparation.child"
_PATIENCE_S = 900.0
RUNS = ("first", "second")


@dataclass(frozen=True)
class PreparationEntry:
    """One system: its name in the document, its file in `bench/preparation/systems/`, the variant."""

    name: str
    system: str
    variant: str = ""
    ours: bool = False


def take_turn(source: Source, entry: PreparationEntry, setting: PreparationSetting) -> dict[str, Any]:
    """Run the job of one system twice. Returns the figures of both runs, or an error."""
    # Paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as folder:
        found: dict[str, Any] = {}
        given = replace(setting, folder=folder, variant=entry.variant)
        for name in RUNS:
            Path(given.log).unlink(missing_ok=True)
            found[name] = _run(source, entry, given, Path(folder), name)
            if "error" in found[name]:
                return {"error": f"{name} run: {found[name]['error']}"}
        return found


def _run(
    source: Source, entry: PreparationEntry, setting: PreparationSetting, folder: Path, name: str
) -> dict[str, Any]:
    files = {what: folder / f"{name}-{what}" for what in ("setting", "answer", "output")}
    files["setting"].write_text(json.dumps(asdict(setting)))
    # Make the same start for every system: no pending writes.
    os.sync()
    source.forget()
    began = time.time()
    line = command(_CHILD, entry.system, files["setting"], files["answer"])
    how = run_child(line, files["output"], _variables(str(folder)), _PATIENCE_S)
    if not files["answer"].exists():
        return {"error": f"{how}; last words: {last_line(files['output'])}"}
    answer: dict[str, Any] = json.loads(files["answer"].read_text())
    if "error" in answer:
        return answer
    notes = read_notes(setting.log)
    epochs = [note["epoch"] for note in notes if "epoch" in note]
    if len(epochs) != setting.epochs:
        return {"error": f"{len(epochs)} of {setting.epochs} epochs ended"}
    return {
        "facts": answer["facts"],
        "wall_s": answer["ended"] - began,
        "cpu_s": answer["cpu_s"],
        "prepare_s": answer["prepare_s"],
        "kept_bytes": answer["kept_bytes"],
        "sent_bytes": source.counts().sent_bytes,
        "transformed": sum(note.get("transformed", 0) for note in notes),
        "epochs": epochs,
    }


def _variables(folder: str) -> dict[str, str]:
    # What a Ray job or a notebook sets for its own process is not meant for another Ray.
    variables = environment("RAY_", "AWS_")
    variables |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return variables | {"AWS_EC2_METADATA_DISABLED": "true", "RAY_TMPDIR": folder}
