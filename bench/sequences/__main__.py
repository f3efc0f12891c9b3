"""Sequence bench: windows per second, memory and time to the first batch, for Forebay and its peers.

    make bench-sequences
    make bench-sequences BENCH_ARGS="--sets 100000x7 10000000x7 --repeats 1"

Each measurement is a process of its own, in the system's environment. Systems take turns, so that a disturbance of the
machine affects all of them. Writes sequences.md, sequences.json and sequences.png to docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.processes import REPOSITORY, command, environment, last_line, run_child
from bench.sequences import data
from bench.sequences.peers import ENTRIES, SETS, SequenceEntry, SeriesSet
from bench.sequences.plot import plot
from bench.sequences.report import report, summary
from bench.sequences.setting import SequenceSetting
from bench.venvs import interpreters

_CHILD = "bench.sequences.child"
_OWN_LIMIT_S = 900.0


def main() -> None:
    given = _options()
    # The turn in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    started, ran_on = time.time(), machine()
    entries = [entry for entry in ENTRIES if given.systems in entry.name.lower()]
    pythons, results = _environments(entries, given.cache / "venvs")
    kept = _kept(given) if given.keep else {"results": [], "figures": []}
    for each in map(SeriesSet.parse, given.sets):
        print(f"data of {each.windows:,} windows, {each.columns} columns", flush=True)
        parquet, flat = data.make(given.data, each.windows, each.columns)
        work = given.cache / "work" / f"series-{each.name}"
        work.mkdir(parents=True, exist_ok=True)
        setting = SequenceSetting(data=parquet, flat=flat, windows=each.windows, columns=each.columns, work=work)
        for repeat in range(1 if each.windows > given.once_above else given.repeats):
            for entry in entries:
                if entry.venv not in pythons or (entry.name, each.name) in _failed(results):
                    continue
                answer = _turn(entry, setting, pythons[entry.venv], given)
                results.append({"name": entry.name, "set": each.name, "repeat": repeat} | answer)
                print(f"{each.name} {repeat + 1} {entry.name}: {summary(answer)}", flush=True)
        # After each set: an interrupted run keeps what it has measured.
        _write(given, ran_on, [*kept["results"], *results], kept["figures"], started)
    figures = kept["figures"] if given.no_own else _own_figures(given.cache / "windows.json")
    _write(given, ran_on, [*kept["results"], *results], figures, started)
    print(f"{given.out}/sequences.md, .json, .png after {(time.time() - started) / 60:.0f} minutes")


def _write(
    given: argparse.Namespace,
    ran_on: dict[str, Any],
    results: list[dict[str, Any]],
    figures: list[dict[str, Any]],
    started: float,
) -> None:
    names = ("repeats", "seconds", "memory_gb", "limit")
    found = {
        "machine": ran_on,
        "options": {name: getattr(given, name) for name in names},
        "took_s": time.time() - started,
        "results": results,
        "figures": figures,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "sequences.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "sequences.md").write_text(report(found))
    plot(found, given.out / "sequences.png")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[each.name for each in SETS], help="windows x columns of each set")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once-above", type=int, default=10**8, help="larger sets are measured once")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement")
    parser.add_argument("--systems", default="", help="only those with this in their name, lower case")
    parser.add_argument("--memory-gb", type=float, default=10.0, help="memory that one process may have")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a system may take to its first batch")
    parser.add_argument("--keep", action="store_true", help="keep the last run's results of other sets")
    parser.add_argument("--no-own", action="store_true", help="leave out the figures of the kernels alone")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "bench")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/forebay-bench").expanduser())
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


def _kept(given: argparse.Namespace) -> dict[str, Any]:
    """Figures of the last run, and its results of sets that this one does not measure."""
    last = json.loads((given.out / "sequences.json").read_text())
    return {
        "results": [result for result in last["results"] if result["set"] not in {"", *given.sets}],
        "figures": last["figures"],
    }


def _failed(results: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {(result["name"], result["set"]) for result in results if "error" in result}


def _own_figures(answer: Path) -> list[dict[str, Any]]:
    """Figures of the kernels and the index alone."""
    answer.unlink(missing_ok=True)
    output = answer.with_suffix(".log")
    how = run_child(command("bench.own.windows", "--json", answer), output, environment(), _OWN_LIMIT_S)
    if answer.exists():
        return list(json.loads(answer.read_text()))
    return [{"figure": "bench.own.windows", "target": "", "measured": None, "unit": "", "passed": False, "note": how}]


def _environments(entries: list[SequenceEntry], folder: Path) -> tuple[dict[str, Path], list[dict[str, Any]]]:
    """Environment -> its Python, and the entries whose environment is missing."""
    pythons, failed = interpreters((entry.venv for entry in entries), folder)
    missing = [entry for entry in entries if entry.venv in failed]
    return pythons, [{"name": entry.name, "set": "", "repeat": 0, "error": failed[entry.venv]} for entry in missing]


def _turn(entry: SequenceEntry, setting: SequenceSetting, python: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Prepare once per dataset, then measure. Returns the figures, or `error`."""
    prepared = setting.work / f"{entry.system}.prepared.json"
    if not prepared.exists():
        answer = _run("prepare", entry, setting, python, given)
        if "error" in answer:
            return {"error": f"while preparing: {answer['error']}"}
        prepared.write_text(json.dumps(answer))
    return json.loads(prepared.read_text()) | _run("measure", entry, setting, python, given)


def _run(
    action: str, entry: SequenceEntry, setting: SequenceSetting, python: Path, given: argparse.Namespace
) -> dict[str, Any]:
    name = "-".join(part for part in (entry.system, entry.variant, action) if part)
    files = {what: setting.work / f"{name}.{what}" for what in ("request", "answer", "log")}
    told = asdict(setting) | {"variant": entry.variant}
    request = {
        "system": entry.system,
        "setting": {key: str(value) if isinstance(value, Path) else value for key, value in told.items()},
        "action": action,
        "seconds": given.seconds,
        "memory_bytes": int(given.memory_gb * 1e9),
    }
    files["request"].write_text(json.dumps(request))
    files["answer"].unlink(missing_ok=True)
    os.sync()
    variables = environment("RAY_", "PYTHON") | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    line = command(_CHILD, files["request"], files["answer"], python=python)
    how = run_child(line, files["log"], variables, given.limit * (3 if action == "prepare" else 1) + given.seconds)
    if not files["answer"].exists():
        return {"error": f"{how}; last words: {last_line(files['log'])}"}
    return dict(json.loads(files["answer"].read_text()))


if __name__ == "__main__":
    main()
