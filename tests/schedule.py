"""Distribution of tests over the processes of `make test`: whole modules, the longest first."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds per module of tests, from a run with `--save-durations`. A missing module counts as short."""
WITH_RAY = ("tests/ray/", "tests/horovod/")
WITH_SERVERS = "tests/storage/"
RAYS_AT_ONCE = 2
"""A test under Ray waits for two thirds of its time. With four Rays on two cores, one did not start within 90 s."""
OWN_CLUSTER = re.compile(r"ray_off|ray\.shutdown\(|Cluster\(|SmallNodes\(|three_node_cluster\(|cluster\.here\(")

_PROCESSES = re.compile(
    r"subprocess|multiprocessing|Popen|fb\.run\(|fork_server|ranks\b|\bpython\(|LocalDriver|os\.fork|process_group"
    r"|ProcessPool|DriverSuite|NotebookClient|torch\.compile"
)
_QUICK_S = 1.0


def is_quick(module: Path) -> bool:
    """Whether a module of unit or house tests starts no process and took less than a second when last recorded."""
    file = module.resolve().relative_to(DURATIONS.parents[1]).as_posix()
    if not file.startswith(("tests/unit/", "tests/house/")):
        return False
    return load_durations().get(file, 0.0) < _QUICK_S and _PROCESSES.search(module.read_text()) is None


def starts_ray(test: str) -> bool:
    """Whether a test, by its id, may start Ray or use the one that its process has started."""
    return test.startswith(WITH_RAY)


@cache
def ends_ray(module: str) -> bool:
    """Whether a module of tests ends the Ray of its process, to start a cluster of its own."""
    return starts_ray(module) and OWN_CLUSTER.search((DURATIONS.parents[1] / module).read_text()) is not None


def module_of(test: str) -> str:
    """File of a test, by its id."""
    return test.partition("::")[0]


@cache
def load_durations() -> dict[str, float]:
    """Seconds per module, as recorded."""
    recorded: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return recorded


def seconds_by(reports: Iterable[pytest.TestReport], key: Callable[[str], str]) -> list[tuple[str, float]]:
    """Seconds of set-up, call and tear-down per `key` of a test's id, longest first."""
    taken: dict[str, float] = defaultdict(float)
    for report in reports:
        taken[key(report.nodeid)] += report.duration
    return sorted(taken.items(), key=lambda entry: -entry[1])


def save_durations(reports: Iterable[pytest.TestReport]) -> None:
    """Record each module that took a second or more."""
    kept = {module: round(seconds) for module, seconds in seconds_by(reports, module_of) if seconds >= 1.0}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def next_module(modules: Collection[str], process: int, num_processes: int) -> str:
    """Module to run in `process`: the longest of the kind it prefers.

    A module runs in one process, so that its fixtures are set up once. The first processes, at most two and not the
    last one, start with the modules that need Ray. They go on with the others, and the last process ends with those
    that need Ray. A Ray takes 4 CPU seconds to start, and stays up for the later modules of its process. So modules
    that end it come first. Modules with servers of storage, 6 CPU seconds, are run by the last process.
    """
    is_last = process == num_processes - 1
    prefers_ray = process < max(1, min(RAYS_AT_ONCE, num_processes - 1))
    seconds = load_durations()
    return min(
        modules,
        key=lambda module: (
            starts_ray(module) != prefers_ray,
            module.startswith(WITH_SERVERS) and not is_last,
            starts_ray(module) and not ends_ray(module),
            -seconds.get(module, 0.0),
            module,
        ),
    )
