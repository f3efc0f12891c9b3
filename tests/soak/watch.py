"""Progress of a soak, and its results in a file."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.soak.case import Case
from tests.soak.slots import CaseResult
from tests.soak.table import driver_of, struck_by

EVERY_S = 30.0
"""Least time between two lines without a terminal."""


class SoakWatch:
    """Shows progress, and each failure with its replay command. Appends each result to the file `path`."""

    def __init__(self, console: Console, cases: list[Case], path: Path) -> None:
        self._console, self._cases, self._path = console, cases, path
        self._began = self._told = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        totals = Counter(case.fault for case in cases)
        self._tasks = {name: self._bars.add_task(name, total=total) for name, total in totals.items()}
        self.results: list[CaseResult] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._bars:
            yield

    def take(self, result: CaseResult) -> None:
        self.results.append(result)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        self._bars.advance(self._tasks[result.fault])
        if result.kind == "failed":
            self._say(f"FAILED  {result.case.replay}\n{result.detail}")
        elif len(self._cases) == 1:
            self._say(f"{result.kind} {result.detail}")

    def tell(self, under_way: list[tuple[Case, float]]) -> None:
        """Print a line, if that is due. `under_way`: cases, and when they began."""
        now = time.monotonic()
        if self._console.is_terminal or now - self._told < EVERY_S:
            return
        self._told = now
        kinds, struck = Counter(each.kind for each in self.results), struck_by(driver_of, self.results)
        drivers = ", ".join(f"{name} {count}" for name, count in struck.most_common())
        told = f"{(now - self._began) / 60:.1f} min: {len(self.results)} of {len(self._cases)} cases"
        told += f", {struck.total()} faults ({drivers}), {kinds['failed']} failed, {kinds['skipped']} skipped"
        for case, since in under_way:
            told += f"; {case.fault} {case.seed} for {now - since:.0f} s"
        self._say(told)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
        self._console.file.flush()


def read_results(paths: list[Path]) -> list[CaseResult]:
    """Results that runs have appended to these files. A torn last line is none."""
    lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
    return [CaseResult(**json.loads(line)) for line in lines if line.endswith("\n")]
