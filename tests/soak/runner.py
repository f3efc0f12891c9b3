"""Draws cases, runs them in two processes side by side, and reports their results."""

from __future__ import annotations

import fnmatch
import queue
import random
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.soak.case import FAULTS, TERMS, Case
from tests.soak.slots import CaseResult, CaseSlot, warm_up
from tests.soak.table import SoakRun, write_table

NUM_SLOTS = 2
GROUP_CASES = 10
"""Cases after which a process of a group ends, so that a broken process affects few."""


def draw_cases(number: int, seed: int, faults: list[str]) -> list[Case]:
    """Draw `number` cases from `faults` by their shares, at least one of each fault."""
    rng = random.Random(seed)
    left = [Case(name, rng.randrange(1 << 32)) for name in faults][:number]
    weights = [TERMS[name].share for name in faults]
    chosen = rng.choices(faults, weights, k=number - len(left))
    return left + [Case(name, rng.randrange(1 << 32)) for name in chosen]


def in_batches(cases: list[Case]) -> list[list[Case]]:
    """Lists of cases that one process runs: single ones, and some of one group. Slow faults come first."""
    alone = [[case] for case in cases if not TERMS[case.fault].group]
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if group := TERMS[case.fault].group:
            groups.setdefault(group, []).append(case)
    shared = [
        members[start : start + GROUP_CASES]
        for members in groups.values()
        for start in range(0, len(members), GROUP_CASES)
    ]
    # Two slow cases at the very end would leave one core idle.
    return shared + sorted(alone, key=lambda batch: TERMS[batch[0].fault].share)


def run_all(batches: list[list[Case]], num_slots: int = NUM_SLOTS) -> Iterator[CaseResult]:
    """Yield the results of all cases as they come."""
    todo: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
    done: queue.SimpleQueue[CaseResult | Exception | None] = queue.SimpleQueue()
    for batch in batches:
        todo.put(batch)

    threads = [threading.Thread(target=_work, args=(todo, done), daemon=True) for _ in range(num_slots)]
    for thread in threads:
        thread.start()
    for _ in range(sum(map(len, batches)) + num_slots):
        if isinstance(result := done.get(), Exception):
            raise result
        if result is not None:
            yield result
    for thread in threads:
        thread.join()


def _work(todo: queue.SimpleQueue[list[Case]], done: queue.SimpleQueue[CaseResult | Exception | None]) -> None:
    slot = CaseSlot()
    try:
        while True:
            for result in slot.run(todo.get_nowait()):
                done.put(result)
    except queue.Empty:
        done.put(None)
    except Exception as error:  # noqa: BLE001 - raised again in the main thread
        done.put(error)
    finally:
        slot.close()


def main() -> int:
    """Run the command line. Returns the exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(soak)
    return int(app(standalone_mode=False) or 0)


def soak(
    cases: Annotated[int, typer.Option(help="How many cases to run.")] = 1000,
    seed: Annotated[int, typer.Option(help="Draws the cases; one is drawn and printed if none is given.")] = -1,
    fault: Annotated[list[str], typer.Option(help="Only faults of this name or pattern; may be repeated.")] = ["*"],  # noqa: B006
    skip: Annotated[list[str], typer.Option(help="No faults of this name or pattern; may be repeated.")] = [],  # noqa: B006
    replay: Annotated[int, typer.Option(help="Run one case of --fault: the one of this seed.")] = -1,
    table: Annotated[str, typer.Option(help="Write the results into this file, between its markers.")] = "",
) -> int:
    """Run randomized fault cases. Returns exit code 1 if one failed."""
    warm_up()
    console = Console(highlight=False)
    names = [name for name in FAULTS if _matches(name, fault) and not _matches(name, skip)]
    if not names or (replay >= 0 and len(names) != 1):
        console.print(f"{len(names)} faults are called {fault}; there are: {', '.join(FAULTS)}")
        return 2
    seed = seed if seed >= 0 else secrets.randbelow(1 << 31)
    chosen = [Case(names[0], replay)] if replay >= 0 else draw_cases(cases, seed, names)
    console.print(f"{len(chosen)} cases of {len({case.fault for case in chosen})} faults, seed {seed}")
    start = time.monotonic()
    results = _watched(run_all(in_batches(chosen)), chosen, console)
    run = SoakRun(seed=seed, seconds=time.monotonic() - start, results=results)
    console.print(run.text(), markup=False, soft_wrap=True)
    if table:
        write_table(Path(table), run)
    return 1 if run.failed else 0


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _watched(results: Iterator[CaseResult], cases: list[Case], console: Console) -> list[CaseResult]:
    """Show the progress of each fault, and each failure with its replay command as it happens."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    found = []
    with Progress(*columns, console=console) as progress:
        names = dict.fromkeys(case.fault for case in cases)
        tasks = {name: progress.add_task(name, total=sum(case.fault == name for case in cases)) for name in names}
        for result in results:
            found.append(result)
            progress.advance(tasks[result.fault])
            if result.kind == "failed":
                console.print(f"FAILED  {result.case.replay}\n{result.detail}", markup=False, soft_wrap=True)
            elif not console.is_terminal and len(found) % 50 == 0:
                console.print(f"{len(found)} of {len(cases)} cases")
            elif len(cases) == 1:
                console.print(f"{result.kind} {result.detail}", markup=False, soft_wrap=True)
    return found
