"""A fault case: a name, a seed, and a function that causes the fault and judges the outcome.

A fault is a function of a random generator and an empty folder. It may raise, but it must never give a wrong result:

```python
@fault("read-error", expected="equal, after retries")
def read_error(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    with failing_reads(...):
        return compare(setting, epoch(setting))
```

It returns `CaseOutcome("equal", ...)` when the order digest, the rows and their content equal the undisturbed
run. It returns `CaseOutcome("error", ...)` for a `ForebayError` that names the object and the remedy. Anything else is
a failure that the harness finds: an exception, a missed deadline, the end of its process, something left behind.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

Kind = Literal["equal", "error", "skipped"]
"""Undisturbed result, clear `ForebayError`, or a fault that the machine cannot stage (`detail` says why)."""


@dataclass(frozen=True)
class Case:
    """One run of a fault. The seed fixes the data, the options and the moment of the fault."""

    fault: str
    seed: int

    @property
    def replay(self) -> str:
        """The command that runs just this case again."""
        return f".venv/bin/python -m tests.soak --fault {self.fault} --replay {self.seed}"


@dataclass
class CaseOutcome:
    """Good end of a case. `faults` counts those that were struck, by kind. Empty for one: the case's own."""

    kind: Kind
    detail: str = ""
    faults: Mapping[str, int] = field(default_factory=dict)


class CannotStage(Exception):
    """The machine cannot stage a fault, or is too busy to: nothing is said of Forebay. The case counts as skipped."""


Fault = Callable[[random.Random, Path], CaseOutcome]

_MOST_BUSY = 10.0
_SLOWEST = 100.0
_SPIN_S, _SPIN_EVERY_S = 0.003, 0.1
_BESIDE_TESTS_S = 25.0

AT_END: list[Callable[[], object]] = []
"""Functions called before a process of a group ends. They end resources that its cases share."""

FAULTS: dict[str, Fault] = {}
"""Every fault by name, in the order of the table."""


@dataclass(frozen=True)
class CaseTerms:
    """Terms on which the runner runs a fault.

    `expected` is for the table in docs/reliability.md. `share` is its relative frequency: slow faults have less
    than 1. `group` names faults whose cases run one after another in one process, because they share something
    expensive such as a Ray session. Other faults get a fresh process for each case. `quick` is the number of seeds
    in `make test`.
    """

    expected: str
    deadline_s: float = 120.0
    share: float = 1.0
    group: str = ""
    quick: int = 1


TERMS: dict[str, CaseTerms] = {}
"""The terms of each of `FAULTS`."""


def fault(
    name: str, *, expected: str, deadline_s: float = 120.0, share: float = 1.0, group: str = "", quick: int = 1
) -> Callable[[Fault], Fault]:
    """Register a fault under `name`."""

    def register(function: Fault) -> Fault:
        assert name not in FAULTS, f"two faults are called {name}"
        FAULTS[name] = function
        TERMS[name] = CaseTerms(expected=expected, deadline_s=deadline_s, share=share, group=group, quick=quick)
        return function

    return register


def rng_of(case: Case) -> random.Random:
    """Random generator of a case, from its name and its seed, so that no two faults draw the same data."""
    return random.Random(f"{case.fault}/{case.seed}")


def patience(seconds: float) -> float:
    """`seconds`, times the factor by which the machine's load exceeds its cores: then everything takes longer."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_BUSY)


class Pace:
    """Measures in the block how much longer the machine takes than one that is idle.

    The load average says what the last minute was like, and nothing of a quota of CPU time. This spins for a few
    milliseconds of CPU time now and then, and takes the time that passes meanwhile.
    """

    def __init__(self) -> None:
        self._cpu_s = self._wall_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="soak-pace", daemon=True)

    @property
    def factor(self) -> float:
        """Time that passed for a second of CPU time, 1 or more."""
        return max(1.0, self._wall_s / self._cpu_s) if self._cpu_s else 1.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._is_over.is_set():
            wall, cpu = time.monotonic(), time.thread_time()
            while time.thread_time() - cpu < _SPIN_S:
                pass
            self._cpu_s += time.thread_time() - cpu
            self._wall_s += time.monotonic() - wall
            self._is_over.wait(_SPIN_EVERY_S)


def promised(seconds: float, pace: Pace | None = None) -> float:
    """Bound that docs/reliability.md promises, with `patience`. `make soak` checks it.

    With the `pace` that was measured meanwhile, on a machine that is slower than its load says. The few cases in
    `make test` have more time: beside other tests, any process may stand still for a while.
    """
    measured = seconds * min(pace.factor, _SLOWEST) if pace else 0.0
    return max(patience(seconds), measured) + (_BESIDE_TESTS_S if "PYTEST_CURRENT_TEST" in os.environ else 0.0)
