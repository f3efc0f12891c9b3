"""Mixture bench: three datasets by the same weights, for Forebay and its peers, in one run.

    make bench-mixture
    make bench-mixture BENCH_ARGS="--rows 50000 --systems forebay"

Each system reads one epoch and the start of a second one in a process of its own, and takes a state in both. Two more
processes go on from these states, and must read the same batches. Writes mixture.md and mixture.json to
docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader.peers import OWN
from bench.machine import machine
from bench.mixture.child import FOLLOWING, STATE_AT
from bench.mixture.report import report, summary
from bench.mixture.setting import write_data
from bench.processes import REPOSITORY, command, environment, last_line, run_child
from bench.venvs import CannotInstall, interpreter

ROWS = 200_000
LEAST_BATCHES = 2 * (STATE_AT + FOLLOWING)


@dataclass(frozen=True)
class MixtureEntry:
    """One row of the table: its name, its file in `bench/mixture/systems/`, and its environment.

    `threads` are the run's by default.
    """

    name: str
    system: str
    venv: str = OWN
    threads: int | None = None


ENTRIES = (
    MixtureEntry("Forebay", "forebay_mixture"),
    MixtureEntry("MosaicML Streaming, `Stream(proportion=)`", "streaming_streams", "streaming"),
    MixtureEntry("litData, `CombinedStreamingDataset`", "litdata_combined", "litdata"),
    MixtureEntry("litData, one worker", "litdata_combined", "litdata", threads=1),
    MixtureEntry("Grain, `IterDataset.mix`", "grain_mix", "grain"),
)


def main() -> None:
    given = _options()
    # The turn in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if given.rows < LEAST_BATCHES * given.batch:
        raise SystemExit(f"--rows {given.rows}: give {LEAST_BATCHES * given.batch} or more, for a state in each epoch.")
    started, ran_on = time.time(), machine()
    data = write_data(given.data, given.rows)
    entries = [entry for entry in ENTRIES if given.systems in entry.system + entry.name.lower()]
    results = []
    for entry in entries:
        print(entry.name, flush=True)
        try:
            python = interpreter(entry.venv, given.cache / "venvs")
        except CannotInstall as error:
            results.append({"name": entry.name, "error": str(error)})
        else:
            results.append({"name": entry.name} | _measured(entry, python, data, given))
        print(f"   {summary(results[-1])}", flush=True)
    options = {name: getattr(given, name) for name in ("rows", "batch", "threads")}
    found = {"machine": ran_on, "options": options, "took_s": time.time() - started, "results": results}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "mixture.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "mixture.md").write_text(report(found))
    print(f"{given.out}/mixture.md, .json after {found['took_s'] / 60:.0f} minutes")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of an epoch")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2, help="threads or processes each loader may use")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a system has failed")
    parser.add_argument("--systems", default="", help="only those with this in their name, lower case")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "bench")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/forebay-bench").expanduser())
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


def _measured(entry: MixtureEntry, python: Path, data: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Answer of the whole run, with the number of equal batches after each state."""
    converted = given.cache / "work" / f"{data.name}-{entry.system}"
    whole = _child(entry, python, data, converted, None, given)
    if "error" in whole:
        return whole
    following = whole.pop("following")
    whole["resumed"] = []
    for state, wanted in zip(whole.pop("states"), following, strict=True):
        again = _child(entry, python, data, converted, state, given)
        equal = None
        if "error" not in again:
            pairs = list(zip(again["digests"], wanted, strict=False))
            equal = sum(left == right for left, right in pairs) / len(wanted)
        whole["resumed"].append({"equal": equal, "error": again.get("error", "")})
    return whole


def _child(
    entry: MixtureEntry, python: Path, data: Path, converted: Path, state: Any, given: argparse.Namespace
) -> dict[str, Any]:
    work = given.cache / "work" / f"{entry.system}-cache"
    if state is None:
        shutil.rmtree(work, ignore_errors=True)
    paths = {"data": str(data), "work": str(work), "converted": str(converted)}
    setting = paths | {"rows": given.rows, "batch": given.batch, "threads": entry.threads or given.threads}
    request = {"system": entry.system, "setting": setting, "state": state, "limit_s": given.limit}
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        files = {what: Path(folder) / what for what in ("request", "answer", "output")}
        files["request"].write_text(json.dumps(request))
        line = command("bench.mixture.child", files["request"], files["answer"], python=python)
        # Conversion and the start of processes come on top of the limit.
        how = run_child(line, files["output"], environment(), given.limit + 120)
        if not files["answer"].exists():
            return {"error": f"{how}; last words: {last_line(files['output'])}"}
        answer: dict[str, Any] = json.loads(files["answer"].read_text())
    return answer


if __name__ == "__main__":
    main()
