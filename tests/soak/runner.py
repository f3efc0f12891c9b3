"""Draws cases, runs them in two processes side by side, and reports their results."""

from __future__ import annotations

import fnmatch
import math
import queue
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tests.soak.case import FAULTS, TERMS, Case
from tests.soak.slots import CaseResult, CaseSlot, warm_up
from tests.soak.table import SoakRun, write_table
from tests.soak.watch import SoakWatch, read_results

NUM_SLOTS = 2
TICK_S, CUT_S = 1.0, 20.0
GROUP_CASES, FEW_CASES = 10, 3
"""Cases after which a process of a group ends, so that a broken process affects few. Fewer where a run has a limit."""


def draw_cases(number: int, seed: int, faults: list[str]) -> list[Case]:
    """Draw `number` cases from `faults` by their shares, at least one of each fault."""
    rng = random.Random(seed)
    left = [Case(name, rng.randrange(1 << 32)) for name in faults][:number]
    weights = [TERMS[name].share for name in faults]
    chosen = rng.choices(faults, weights, k=number - len(left))
    return left + [Case(name, rng.randrange(1 << 32)) for name in chosen]


def in_batches(cases: list[Case], together: int = GROUP_CASES) -> list[list[Case]]:
    """Lists of cases that one process runs: single ones, and some of one group. Slow faults come first."""
    alone = [[case] for case in cases if not TERMS[case.fault].group]
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if group := TERMS[case.fault].group:
            groups.setdefault(group, []).append(case)
    shared = [
        members[start : start + together] for members in groups.values() for start in range(0, len(members), together)
    ]
    # Two slow cases at the very end would leave one core idle.
    return shared + sorted(alone, key=lambda batch: TERMS[batch[0].fault].share)


class Crew:
    """Slots at work on batches of cases, side by side. After `limit_s`, none is begun."""

    def __init__(self, batches: list[list[Case]], num_slots: int = NUM_SLOTS, limit_s: float = math.inf) -> None:
        self._todo: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[CaseResult | Exception | None] = queue.SimpleQueue()
        for batch in batches:
            self._todo.put(batch)
        self._until = time.monotonic() + limit_s
        # Forks of this process, which has the imports, while it has no other thread.
        self._slots = [CaseSlot(forks=True) for _ in range(num_slots)]
        self._threads = [threading.Thread(target=self._work, args=(slot,), daemon=True) for slot in self._slots]
        self.under_way: dict[CaseSlot, tuple[Case, float]] = {}

    def results(self, tick: Callable[[], object] = lambda: None) -> Iterator[CaseResult]:
        """Yield the results of all cases as they come. Calls `tick` again and again meanwhile."""
        for thread in self._threads:
            thread.start()
        at_work = len(self._slots)
        while at_work:
            tick()
            with suppress(queue.Empty):
                if isinstance(result := self._done.get(timeout=TICK_S), Exception):
                    raise result
                if result is not None:
                    yield result
                at_work -= result is None
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """End the cases that are under way. They have no result."""
        self._until = 0.0
        for slot in self._slots:
            slot.cut()
        for thread in self._threads:
            thread.join(CUT_S)

    def _work(self, slot: CaseSlot) -> None:
        try:
            while time.monotonic() < self._until:
                left = self._todo.get_nowait()
                self.under_way[slot] = left[0], time.monotonic()
                for result in slot.run(left):
                    left = left[1:]
                    if left:
                        self.under_way[slot] = left[0], time.monotonic()
                    self._done.put(result)
            self._done.put(None)
        except queue.Empty:
            self._done.put(None)
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self._done.put(error)
        finally:
            self.under_way.pop(slot, None)
            slot.close()


class CutShort(BaseException):
    """SIGTERM or SIGINT. The results so far are shown, and kept."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number


def _cut(number: int, _: object) -> None:
    raise CutShort(number)


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
    minutes: Annotated[float, typer.Option(help="Begin no case after this time.")] = math.inf,
    slots: Annotated[int, typer.Option(help="How many cases run at once.")] = NUM_SLOTS,
    replay: Annotated[int, typer.Option(help="Run one case of --fault: the one of this seed.")] = -1,
    table: Annotated[str, typer.Option(help="Write the results into this file, between its markers.")] = "",
    results: Annotated[str, typer.Option(help="Append each result to this file: build/soak/SEED.jsonl.")] = "",
    show: Annotated[list[str], typer.Option(help="Show the results in this file, and run none; repeatable.")] = [],  # noqa: B006
) -> int:
    """Run randomized fault cases. Returns exit code 1 if one failed.

    Each result is appended to a file. SIGTERM and SIGINT end the run with the table of what it has.
    """
    warm_up()
    console = Console(highlight=False)
    if show:
        kept = read_results([Path(path) for path in show])
        run = SoakRun(seed=seed, seconds=sum(result.seconds for result in kept), results=kept)
        console.print(run.text(), markup=False, soft_wrap=True)
        return 1 if run.failed else 0
    names = [name for name in FAULTS if _matches(name, fault) and not _matches(name, skip)]
    if not names or (replay >= 0 and len(names) != 1):
        console.print(f"{len(names)} faults are called {fault}; there are: {', '.join(FAULTS)}")
        return 2
    seed = seed if seed >= 0 else secrets.randbelow(1 << 31)
    chosen = [Case(names[0], replay)] if replay >= 0 else draw_cases(cases, seed, names)
    console.print(f"{len(chosen)} cases of {len({case.fault for case in chosen})} faults, seed {seed}")
    start = time.monotonic()
    batches = in_batches(chosen, GROUP_CASES if minutes == math.inf else FEW_CASES)
    if minutes < math.inf:
        random.Random(seed).shuffle(batches)
    watch = SoakWatch(console, chosen, Path(results or f"build/soak/{seed}.jsonl"))
    code = _watch(Crew(batches, slots, 60 * minutes), watch)
    run = SoakRun(seed=seed, seconds=time.monotonic() - start, results=watch.results)
    console.print(run.text(), markup=False, soft_wrap=True)
    if table and not code:
        write_table(Path(table), run)
    return code or int(bool(run.failed))


def _watch(crew: Crew, watch: SoakWatch) -> int:
    """Run all cases. Returns the exit code of a run that was cut, or else 0."""
    signals = {number: signal.signal(number, _cut) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with watch.open():
            for result in crew.results(lambda: watch.tell(list(crew.under_way.values()))):
                watch.take(result)
    except CutShort as cut:
        crew.cut()
        return cut.code
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
    return 0


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
