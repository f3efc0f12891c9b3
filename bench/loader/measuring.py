"""Turn of one system: its runs, each in a process of its own, and their merged answers."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader.peers import PeerEntry, PeerRun
from bench.processes import command, environment, last_line, run_child

_CHILD = "bench.loader.child"
# Extra time for a run beyond its epochs: Ray starts slowly, and some data must be converted.
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Bench:
    """Folders and interpreters of the bench.

    `work` holds caches, converted data and logs. `pythons` has the interpreter of each environment.
    """

    work: Path
    rows: int
    threads: int
    limit_s: float
    pythons: dict[str, Path]


def measure(bench: Bench, entry: PeerEntry, kind: str, folder: Path, *, repeat: int) -> dict[str, Any]:
    """Measure one system. Returns the totals of all phases by name, its facts and conversion seconds, or `error`."""
    phases: dict[str, Any] = {}
    merged: dict[str, Any] = {"prepare_s": 0.0}
    for run in entry.runs:
        answer = _run(bench, entry, run, kind, folder, repeat)
        if "error" in answer:
            return answer
        phases |= answer["phases"]
        # A conversion is paid once. Later runs find its result.
        merged = answer | {"prepare_s": max(merged["prepare_s"], answer["prepare_s"])}
    return merged | {"phases": phases}


def _run(bench: Bench, entry: PeerEntry, run: PeerRun, kind: str, folder: Path, repeat: int) -> dict[str, Any]:
    name = "-".join(part for part in (entry.system, entry.variant, folder.name) if part)
    work, converted = bench.work / "caches" / name, bench.work / "converted" / name
    if run.fresh:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    converted.parent.mkdir(parents=True, exist_ok=True)
    phases = [phase for phase in run.phases if repeat == 0 or phase[0] not in entry.once]
    setting = {
        "kind": kind,
        "data": str(folder),
        "num_rows": bench.rows,
        "work": str(work),
        "converted": str(converted),
        "variant": entry.variant,
        "threads": bench.threads,
    }
    request = {"system": entry.system, "setting": setting, "phases": phases, "limit_s": bench.limit_s}
    files = {what: bench.work / f"{name}.{what}" for what in ("request", "answer", "log")}
    files["request"].write_text(json.dumps(request))
    files["answer"].unlink(missing_ok=True)
    _settle(folder, converted)
    patience_s = _PATIENCE_S + 3 * bench.limit_s * len(phases)
    # What a Ray job or a notebook sets for its own process is not meant for another Ray in another environment.
    variables = environment("RAY_", "PYTHON") | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    line = command(_CHILD, files["request"], files["answer"], python=bench.pythons[entry.venv])
    how = run_child(line, files["log"], variables, patience_s)
    if not files["answer"].exists():
        return {"error": f"{how}; last words: {last_line(files['log'])}"}
    return dict(json.loads(files["answer"].read_text()))


def _settle(*folders: Path) -> None:
    """Make the same start for every system: no pending writes, and all sources in the page cache."""
    os.sync()
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
