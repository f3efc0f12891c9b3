"""Many cases of damage, each in a process that it may kill. After its death the next process continues."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Run by the process that tests start, where these files can import one another.
collect_ignore_glob = ["mutants/*"]

MUTANTS = Path(__file__).parent / "mutants"
START_S = 60.0
"""Longest wait for the first line of output, which follows the imports."""
SILENCE_S = 60.0
"""Silence after which a process counts as hung."""


@dataclass
class Campaign:
    """Cases `first` to `first + cases - 1` of a seed: `outcomes` by (damage, outcome), and `faults`."""

    target: str
    folder: Path
    seed: int
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def run(self, cases: int, *, first: int = 0, most_faults: int = 20) -> None:
        """Run the cases in order, through as many processes as necessary."""
        at, stop = first, first + cases
        while at < stop and len(self.faults) < most_faults:
            at = self._run_process(at, stop)

    def _run_process(self, first: int, stop: int) -> int:
        """Run cases in one process. Returns the number of the next case to run."""
        command = [
            sys.executable,
            "main.py",
            self.target,
            str(self.folder),
            str(self.seed),
            str(first),
            str(stop - first),
        ]
        errors = self.folder / "errors.txt"
        self.folder.mkdir(parents=True, exist_ok=True)
        with errors.open("wb") as sink:
            process = subprocess.Popen(command, cwd=MUTANTS, stdout=subprocess.PIPE, stderr=sink)
        begun, ended, how = first - 1, first - 1, ""
        try:
            for line in _lines(process):
                word, number, *said = line.split(" ", 2)
                if word == "begin":
                    begun = int(number)
                else:
                    ended = int(number)
                    self._note(ended, json.loads(said[0]))
        except TimeoutError as error:
            how = f"{error}; "
        finally:
            process.kill()
            code = process.wait()
        if ended == stop - 1:
            return stop
        dying = begun if begun > ended else begun + 1
        died = signal.Signals(-code).name if code < 0 else f"exit {code}"
        self._fault(dying, f"{how}process ended: {died}\n{errors.read_text(errors='replace')[-3000:]}")
        return dying + 1 if begun > ended else stop  # it did not even start

    def _note(self, number: int, said: dict[str, Any]) -> None:
        if "fault" in said:
            self._fault(number, f"{said['damage']} {said['fault']}\n{said['trace'][-3000:]}")
        else:
            self.outcomes[said["damage"], said["outcome"]] += 1

    def _fault(self, number: int, what: str) -> None:
        replay = f"cd {MUTANTS} && {sys.executable} main.py {self.target} {self.folder} {self.seed} {number} 1"
        self.faults.append(f"seed {self.seed}, case {number}: {what}\nAgain: {replay}")

    def report(self) -> str:
        """One line per kind of damage and outcome."""
        lines = [f"{count:7} {damage}: {outcome}" for (damage, outcome), count in sorted(self.outcomes.items())]
        return "\n".join([f"{self.target}: {self.outcomes.total()} cases of seed {self.seed}", *lines])


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of its output. Raises `TimeoutError` when it is silent for too long."""
    assert process.stdout is not None
    rest, patience_s = b"", START_S
    with process.stdout as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(patience_s):
                raise TimeoutError(f"hung for {patience_s:.0f} s")
            patience_s = SILENCE_S
            got = os.read(pipe.fileno(), 1 << 16)
            if not got:
                return
            *whole, rest = (rest + got).split(b"\n")
            yield from (line.decode() for line in whole)


@pytest.fixture
def fuzz(tmp_path: Path) -> Callable[..., Campaign]:
    """`fuzz(target, cases, seed=0) -> Campaign` that ran without a fault and printed its counts.

    FOREBAY_FUZZ_SEED and FOREBAY_FUZZ_CASES replace the arguments, for another search or to repeat one.
    """

    def run(target: str, cases: int, seed: int = 0) -> Campaign:
        campaign = Campaign(target, tmp_path / target, int(os.environ.get("FOREBAY_FUZZ_SEED", seed)))
        campaign.run(int(os.environ.get("FOREBAY_FUZZ_CASES", cases)))
        print(campaign.report())
        assert not campaign.faults, f"{len(campaign.faults)} faults:\n" + "\n\n".join(campaign.faults)
        return campaign

    return run


@pytest.fixture
def fuzz_module() -> Any:
    """This file, for its own tests."""
    return sys.modules[Campaign.__module__]
