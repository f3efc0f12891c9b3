"""Figures of Forebay alone: measured, compared with their targets, printed and written. Also runs their scripts.

A script measures in fresh processes of itself, `measure(__spec__.name, "name", argument=...)`, so that one measurement
leaves nothing behind for the next.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.processes import command, environment


@dataclass(frozen=True)
class Figure:
    """One figure. `measured` and `target` are in `unit`. `passed` is None without a target."""

    figure: str
    target: str
    measured: float | None
    unit: str
    passed: bool | None
    note: str = ""


Figures = Callable[[Path, bool], Sequence[Figure]]


def main(figures: Figures, children: Mapping[str, Callable[..., Any]], all_figures: Figures | None = None) -> None:
    """Command line of a script: `--json PATH` and `--quick`, or one of its measurements (`--child`).

    A script whose whole measurement takes long gives it as `all_figures`, which `--all` runs in place of `figures`.
    """
    options = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path, help="where to write the figures, as a list")
    options.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast it is")
    if all_figures is not None:
        options.add_argument("--all", action="store_true", help="all cases: see above for how long they take")
    options.add_argument("--folder", type=Path, help="where to put data; by default a temporary folder")
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        call = json.loads(given.child)
        print(json.dumps(children[call.pop("measure")](**call)), flush=True)  # The last line is the answer.
        return
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=given.folder) as folder:
        chosen = all_figures if all_figures is not None and given.all else figures
        found = chosen(Path(folder), given.quick)
    _tell(found)
    if given.json:
        given.json.write_text(json.dumps([asdict(figure) for figure in found], indent=1))


def measure(module: str, name: str, **arguments: Any) -> Any:
    """Answer of one measurement in a fresh process."""
    call = json.dumps({"measure": name} | arguments, default=str)
    line = command(module, "--child", call)
    done = subprocess.run(line, check=True, env=environment(), stdout=subprocess.PIPE, text=True, timeout=1800)  # noqa: S603 - ourselves
    return json.loads(done.stdout.splitlines()[-1])


def interleaved(names: Sequence[str], rounds: int, run: Callable[[str], float]) -> dict[str, list[float]]:
    """Call `run(name)` for each name in turn, `rounds` times, so that a disturbance affects all of them alike."""
    results: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            results[name].append(run(name))
    return results


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median and range, for a note."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"


def _tell(figures: Sequence[Figure]) -> None:
    rows = [("figure", "target", "measured", "", "note")]
    for found in figures:
        measured = "-" if found.measured is None else f"{found.measured:.4g}"
        verdict = {True: "ok", False: "MISSED", None: ""}[found.passed]
        rows.append((found.figure, found.target, f"{measured} {found.unit}", verdict, found.note))
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, [*widths, 0], strict=True)).rstrip())
