"""Small Parquet data for every test, and guards that fail a test that leaves a thread or a variable behind."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from tests.schedule import is_quick, module_of, save_durations, seconds_by, starts_ray

from forebay.data.parquet import footer_store
from forebay.runtime import gpus

pytest_plugins = ["tests.processes"]
# The time of an example means nothing on a machine with other work.
settings.register_profile("forebay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", settings.get_profile("forebay"), max_examples=30)

# Many tests replace parts of this process. Tests of worker processes set it, whatever the number of cores.
os.environ.setdefault("FOREBAY_DATA_WORKERS", "threads")
# readline, which pytest imports, sets them for child processes, and a pipe has no width.
for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)
    os.unsetenv(_size)
GRACE_S = 30.0
OF_HELPERS = (
    *("tests/unit/bench/", "tests/unit/studies/", "tests/unit/testing/"),
    *("tests/fuzz/test_harness.py", "tests/soak/test_harness.py", "tests/test_processes.py"),
)
SETTLE_S = 0.02
# One event loop per process that fsspec starts on first use and never stops.
PROCESS_WIDE_THREADS = ("fsspecIO",)
# Background threads of a live Ray session. They belong to the session, not to the test.
RAY_LIBRARIES = frozenset({"ray", "torch", "pyarrow", "grpc", "opencensus", "opentelemetry", "prometheus_client"})
# Written by pytest itself, by `ray.init` and the first import of Ray, by the first step of an optimizer, and by
# scikit-learn, which transformers imports, and which no test controls.
FOREIGN_VARIABLES = frozenset(
    {
        *("PYTEST_CURRENT_TEST", "PYTHONBREAKPOINT", "TORCHINDUCTOR_CACHE_DIR"),
        *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
        "PYTORCH_NVML_BASED_CUDA_CHECK",  # set by deepspeed and accelerate
        *("RAY_AUTH_MODE", "RAY_CLIENT_MODE", "RAY_USAGE_STATS_ENABLED"),
    }
)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        *((f"x{number}", pa.float32()) for number in range(4)),
        ("c0", pa.int64()),
        ("c1", pa.int64()),
        ("s", pa.string()),
        ("tags", pa.list_(pa.int64())),
        ("clicked", pa.int8()),
    ]
)


@pytest.fixture(scope="session", autouse=True)
def no_gpus() -> Iterator[None]:
    """Jobs that leave their GPUs open train on CPUs, also on a machine with GPUs."""
    found, gpus.num_gpus = gpus.num_gpus, lambda: 0
    yield
    gpus.num_gpus = found


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples of each property where variations are left out: others in each run."""
    settings.load_profile("few" if "not variation" in config.getoption("markexpr") else "forebay")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, modules that start processes or take long are not even imported."""
    is_slow = config.getoption("quick") and collection_path.suffix == ".py" and not is_quick(collection_path)
    return True if is_slow else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only unit tests without processes: `make check`")
    parser.addoption("--save-durations", action="store_true", help="record what `make test` is balanced by")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show where the time of a whole run went."""
    if not config.getoption("processes"):
        return
    reports = [
        report for group in terminalreporter.stats.values() for report in group if isinstance(report, pytest.TestReport)
    ]
    by_test = seconds_by(reports, str)
    total_s = sum(seconds for _, seconds in by_test)
    terminalreporter.section(f"ten slowest of {len(by_test)} tests, which took {total_s:.0f} process-seconds")
    for test, seconds in by_test[:10]:
        terminalreporter.write_line(f"{seconds:6.1f} s  {test}")
    if config.getoption("save_durations"):
        save_durations(reports)


def pytest_collection_finish() -> None:
    """Let loggers of PyTorch pass their records on to the root, and keep what was collected out of the garbage.

    pytest adds its handlers to each logger that does not, six times a test: a fifth of the time of a small test. A
    million objects live as long as the process: each `gc.collect()` of a test took 0.7 s to look at them.
    """
    gc.collect()
    gc.freeze()
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray last: cheap failures come first, and no unit test forks a process in which Ray's threads are alive.

    Of tests about benches, studies and helpers of tests, the first of a module runs, or those marked `smoke`.
    A class that inherits its tests names in `variations` the tests whose case another class has too, and in
    `varied_cases` such cases of any test.
    """
    items.sort(key=lambda item: starts_ray(item.nodeid))
    of_helpers = [item for item in items if item.nodeid.startswith(OF_HELPERS)]
    for _, group in groupby(of_helpers, key=lambda item: module_of(item.nodeid)):
        tests = list(group)
        chosen = [item for item in tests if item.get_closest_marker("smoke")] or tests[:1]
        for item in set(tests) - set(chosen):
            item.add_marker(pytest.mark.variation)
    for item in items:
        cls = getattr(item, "cls", None)
        variations = getattr(cls, "variations", ())
        assert all(hasattr(cls, name) for name in variations), f"{cls} has no such test"
        case = item.callspec.id if hasattr(item, "callspec") else None
        if getattr(item, "originalname", None) in variations or case in getattr(cls, "varied_cases", ()):
            item.add_marker(pytest.mark.variation)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process that ran all tests with Ray may go on with others, some of which fork."""
    ray = sys.modules.get("ray")
    if ray is not None and not starts_ray(item.nodeid) and ray.is_initialized():
        ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def footers_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the footers of this process's scans out of the user's folder."""
    footer_store.default_cache_folder = str(tmp_path_factory.mktemp("node") / "cache")


@pytest.fixture(autouse=True)
def no_leaked_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose threads are still alive half a minute after it (and after its own fixtures) ended."""
    before = set(threading.enumerate())
    yield
    allowed = RAY_LIBRARIES if starts_ray(request.node.nodeid) else frozenset()
    deadline = time.monotonic() + GRACE_S
    while leaked := _new_threads(before, allowed):
        if time.monotonic() > deadline:
            names = ", ".join(f"{thread.name} ({_origin(thread)})" for thread in leaked)
            pytest.fail(f"threads left running: {names}. Close what the test opened.", pytrace=False)
        time.sleep(SETTLE_S)


def _new_threads(before: set[threading.Thread], allowed: frozenset[str]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before
        and thread.is_alive()
        and not thread.name.startswith(PROCESS_WIDE_THREADS)
        # A native thread that once called into Python, which cannot be joined.
        and not isinstance(thread, threading._DummyThread)
        and _origin(thread).partition(".")[0] not in allowed
    ]


def _origin(thread: threading.Thread) -> str:
    """Name the module that owns the thread's function, or its class."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or type(thread).__module__)


@pytest.fixture(autouse=True)
def no_leaked_variables() -> Iterator[None]:
    """Fail a test that leaves an environment variable set, changed or missing. Restores the environment."""
    before = dict(os.environ)
    yield
    changed = sorted(
        name
        for name in (before.keys() | os.environ.keys()) - FOREIGN_VARIABLES
        if before.get(name) != os.environ.get(name)
    )
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    if changed:
        pytest.fail(f"environment variables changed: {', '.join(changed)}. Use monkeypatch.setenv.", pytrace=False)


@pytest.fixture
def parquet_folder(tmp_path: Path) -> Callable[..., Path]:
    """`write({"a.parquet": [3, 1], "b.parquet": [5]}, seed=0, folder="data") -> Path` under the test's own folder.

    The lists are the rows of each row group (0 makes an empty row group, [] a file without any). Columns: `id` int64,
    0..N-1 in the order of sorted file names; `x0` float32 equal to `id`; `x1`..`x3` float32 random; `c0`, `c1` int64
    below 10 and 1000; `s` string; `tags` list<int64> of 0 to 4; `clicked` int8. No nulls.
    """

    def write(files: Mapping[str, Sequence[int]], *, seed: int = 0, folder: str = "data") -> Path:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        first_id = 0
        for name, row_group_rows in sorted(files.items()):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(path, SCHEMA) as writer:
                for rows in row_group_rows:
                    writer.write_table(_row_group(first_id, rows, seed), row_group_size=max(rows, 1))
                    first_id += rows
        return root

    return write


def _row_group(first_id: int, rows: int, seed: int) -> pa.Table:
    ids = np.arange(first_id, first_id + rows)
    rng = np.random.default_rng([seed, first_id, rows])
    columns: dict[str, object] = {"id": ids, "x0": ids.astype(np.float32)}
    columns |= {name: rng.standard_normal(rows, dtype=np.float32) for name in ("x1", "x2", "x3")}
    columns |= {
        "c0": rng.integers(10, size=rows),
        "c1": rng.integers(1000, size=rows),
        "s": [f"s{row_id % 7}" for row_id in ids],
        "tags": [list(range(row_id, row_id + row_id % 5)) for row_id in ids],
        "clicked": rng.integers(2, size=rows).astype(np.int8),
    }
    return pa.table(columns, schema=SCHEMA)
