"""Side-by-side bench: every system in turn, repeated and interleaved, in one run.

make bench
make bench BENCH_ARGS="--rows 100000 --repeats 2"
ray job submit --working-dir . -- python -m bench.loader --rows 100000 --out /shared/bench

Writes loader.md, loader.json and loader.png to docs/benchmarks. On a machine with a GPU, make pip find CPU builds of
torch first (README.md). Otherwise the environments of the peers take gigabytes.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.loader import data
from bench.loader.features import KINDS
from bench.loader.figures import FOREBAY, figures
from bench.loader.measuring import Bench, measure
from bench.loader.peers import ENTRIES, PeerEntry
from bench.loader.plot import plot
from bench.loader.report import report, targets
from bench.machine import machine
from bench.processes import REPOSITORY, command, environment
from bench.venvs import CannotInstall, interpreter

# Number of row groups that the target of the warm start refers to.
WARM_ROW_GROUPS = 120


def main() -> None:
    given = _options()
    console = Console()
    # The turn in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    started = time.time()
    entries = [entry for entry in ENTRIES if any(part in entry.name.lower() for part in given.systems.split(","))]
    sets = {kind: data.make(kind, given.data, rows=given.rows) for kind in given.kinds}
    pythons, failed = _environments(entries, given.cache / "venvs", console)
    bench = Bench(
        work=given.cache / "work", rows=given.rows, threads=given.threads, limit_s=given.limit, pythons=pythons
    )
    turns = [
        (repeat, kind, entry)
        for repeat in range(given.repeats)
        for kind in given.kinds
        # The wide set is measured once less: the targets refer to the other one.
        if kind == given.kinds[0] or repeat < max(given.repeats - 1, 1)
        for entry in entries
        if entry.venv not in failed
    ]
    results = [{"name": entry.name, "error": failed[entry.venv]} for entry in entries if entry.venv in failed]
    with _progress(console) as progress:
        task = progress.add_task("", total=len(turns))
        for repeat, kind, entry in turns:
            progress.update(task, description=f"{repeat + 1}/{given.repeats} {kind}: {entry.name}")
            answer = measure(bench, entry, kind, sets[kind], repeat=repeat)
            results.append({"name": entry.name, "kind": kind, "repeat": repeat} | answer)
            progress.console.print(_line(results[-1]))
            progress.advance(task)
    warm = _warm_start(bench, given, [entry for entry in entries if entry.name == FOREBAY])
    found = {
        "machine": machine(),
        "options": {"rows": given.rows, "repeats": given.repeats, "threads": given.threads, "limit_s": given.limit},
        "took_s": time.time() - started,
        "results": results,
        "figures": [*figures(results, warm), *_own_figures(given, console)],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "loader.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "loader.md").write_text(report(found))
    plot(found, given.out / "loader.png")
    console.print(targets(found["figures"]), markup=False, highlight=False, soft_wrap=True)
    console.print(f"{given.out}/loader.md, .json, .png after {found['took_s'] / 60:.0f} minutes")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=data.ROWS, help="rows of each dataset")
    parser.add_argument("--repeats", type=int, default=3, help="times every system is measured on the dense set")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--systems", default="", help="only those with one of these, lower case, in their name: a,b")
    parser.add_argument("--threads", type=int, default=2, help="threads or processes each loader may use")
    parser.add_argument("--limit", type=float, default=8.0, help="seconds after which an epoch is stopped")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "bench")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/forebay-bench").expanduser())
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    parser.add_argument("--no-own", action="store_true", help="leave out the figures of bench/own/")
    return parser.parse_args()


def _environments(entries: list[PeerEntry], folder: Path, console: Console) -> tuple[dict[str, Path], dict[str, str]]:
    """Environment -> its Python, and environment -> reason why it is missing."""
    pythons, failed = {}, {}
    for name in sorted({entry.venv for entry in entries}):
        try:
            with console.status(f"environment of {name or 'forebay'} (minutes the first time)"):
                pythons[name] = interpreter(name, folder)
        except CannotInstall as error:
            failed[name] = str(error)
            console.print(f"{name}: {error}")
    return pythons, failed


def _warm_start(bench: Bench, given: argparse.Namespace, entries: list[PeerEntry]) -> list[float]:
    """Seconds from opening to the first batch in a new process with a full cache, per repeat. Imports do not count."""
    if not entries:
        return []
    folder = data.make("dense", given.data, rows=given.rows, row_groups=WARM_ROW_GROUPS)
    answers = [measure(bench, entries[0], "dense", folder, repeat=repeat) for repeat in range(given.repeats)]
    warm = [answer["phases"]["warm"] for answer in answers if "phases" in answer]
    return [phase["open_s"] + phase["first_batch_s"] for phase in warm]


OWN = ("first_batch", "memory", "mixture", "plan", "readers", "slowdown")


def _own_figures(given: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Figures of the scripts in `bench.own`, which measure Forebay alone. A script that fails is a failed figure."""
    found: list[dict[str, Any]] = []
    for script in [] if given.no_own else OWN:
        answer = given.cache / f"{script}.json"
        answer.unlink(missing_ok=True)
        with console.status(script):
            done = subprocess.run(  # noqa: S603
                command(f"bench.own.{script}", "--json", answer),
                env=environment(),
                check=False,
                capture_output=True,
                text=True,
            )
        if done.returncode == 0 and answer.exists():
            found += json.loads(answer.read_text())
        else:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            found.append({"figure": script, "target": "", "measured": None, "unit": "", "passed": False, "note": last})
    return found


def _line(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{result['kind']} {result['name']}: failed: {result['error'][:200]}"
    rates = ", ".join(f"{name} {phase['rows_per_s']:,.0f}" for name, phase in result["phases"].items())
    return f"{result['kind']} {result['name']}: rows/s {rates}"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


if __name__ == "__main__":
    main()
