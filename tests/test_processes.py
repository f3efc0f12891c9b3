"""Tests run once each in forked processes, and whatever ends one of those is a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import AFTER_ALL

ROOT = Path(__file__).parents[1]
CONFTEST = """
import os
import pytest

with open("collected", "a") as file:
    file.write("x")

@pytest.fixture(scope="session")
def of_session(tmp_path_factory):
    yield tmp_path_factory.mktemp("mine")
    with open("ended", "a") as file:
        file.write("x")
    if os.environ.get("FAILS_LATE"):
        raise OSError("of the session's fixture")
"""
MODULE = """
import os, warnings
from multiprocessing import get_context
import pytest

@pytest.fixture(scope="module")
def number(of_session):
    with open("modules", "a") as file:
        file.write("x")
    return os.getpid()

@pytest.mark.parametrize("case", range(3))
def test_passes(number, case, of_session):
    print("said by", case)
    os.system("echo from a child process")
    warnings.warn("of a test", UserWarning)
    with open("ran", "a") as file:
        file.write("x")
    assert os.getpid() == number

def test_of_a_spawned_process(number):
    process = get_context("spawn").Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
FAILS = """
def test_fails():
    print("words of the failure")
    assert 1 == 2
"""
DIES = """
import os, signal

def test_before():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""
ORPHAN = """
import os, time

def test_that_forks():
    if os.fork() == 0:
        raise OSError("an error of the child that pytest would report")
    time.sleep(0.5)
"""


def _pytest(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.processes", "--processes", "2", *words]
    variables = {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(command, cwd=folder, env=kept | variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two modules whose tests pass."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(MODULE)
    return tmp_path


@pytest.mark.smoke
def test_each_test_runs_once_and_a_module_in_one_process(folder: Path) -> None:
    status, out = _pytest(folder, "-v")
    assert status == 0, out
    assert "8 passed, " in out
    warned = out.partition("warnings summary")[2].splitlines()  # also of folders that other runs of pytest remove
    assert len([line for line in warned if line.startswith("test_")]) == 6, out
    assert "[p0]" in out or "[p1]" in out
    assert "of a test" in out
    assert "said by" not in out
    assert "from a child process" not in out
    written = {name: (folder / name).read_text() for name in ("collected", "ran", "modules", "ended")}
    assert written == {"collected": "x", "ran": "x" * 6, "modules": "xx", "ended": "x" * len(written["ended"])}
    assert 1 <= len(written["ended"]) <= 2


def test_a_failure_has_its_words_and_can_run_again(folder: Path) -> None:
    (folder / "test_c.py").write_text(FAILS)
    status, out = _pytest(folder)
    assert status == 1
    assert "1 failed, 8 passed" in out
    assert "words of the failure" in out
    status, out = _pytest(folder, "--last-failed")
    assert status == 1
    assert "1 failed" in out
    assert "passed" not in out


@pytest.mark.smoke
def test_a_process_that_dies_fails_its_test_and_is_replaced(folder: Path) -> None:
    (folder / "test_c.py").write_text(DIES)
    status, out = _pytest(folder)
    assert status == 1
    assert "1 failed, 10 passed" in out
    assert "test_c.py::test_dies" in out
    assert "The process of this test ended with -9, a signal." in out


DIES_FIRST = """
import os, time
from tests import processes

processes._given = lambda connection: os._exit(7)
"""
DIES_ASKING = """
import os, time
from tests import processes

processes._given = lambda connection: (connection.send(("next",)), os._exit(7))
answer = processes._Processes._next_tests
processes._Processes._next_tests = lambda self, number: (time.sleep(0.3), answer(self, number))[1]
"""


@pytest.mark.parametrize("code", [DIES_FIRST, DIES_ASKING])
def test_processes_that_cannot_begin_end_it(folder: Path, code: str) -> None:
    (folder / "dies_first.py").write_text(code)
    status, out = _pytest(folder, "-p", "dies_first", PYTHONPATH=f"{ROOT}{os.pathsep}{folder}")
    assert status == 1
    assert out.count("ended with 7, its exit code.") >= 2
    assert AFTER_ALL not in out  # tests.again would not count it
    assert not (folder / "ran").exists()


CRASHES_LATE = """
import atexit, os, signal

def test_of_a_process_that_crashes_at_its_end():
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
"""


def test_a_crash_in_the_end_of_a_process_is_named_and_shows_its_threads(folder: Path) -> None:
    (folder / "test_c.py").write_text(CRASHES_LATE)
    status, out = _pytest(folder)
    assert status == 1
    assert "1 failed, 9 passed" in out
    assert "The process of this test ended with -11, a signal." in out
    assert "Fatal Python error: Segmentation fault" in out
    (failed,) = json.loads((folder / ".pytest_cache/v/cache/lastfailed").read_text())
    assert failed.startswith(AFTER_ALL)


def test_an_exit_code_in_the_end_of_a_process_is_no_crash(folder: Path) -> None:
    (folder / "test_c.py").write_text(CRASHES_LATE.replace("os.kill, os.getpid(), signal.SIGSEGV", "os._exit, 3"))
    status, out = _pytest(folder)
    assert status == 1
    assert "ended with 3, its exit code." in out
    assert AFTER_ALL not in out  # tests.again would not count it


def test_what_fails_at_the_end_of_a_process_counts(folder: Path) -> None:
    status, out = _pytest(folder, FAILS_LATE="1")
    assert status == 1
    assert "of the session's fixture" in out
    assert "8 passed" in out


def test_the_first_failure_may_end_all(folder: Path) -> None:
    (folder / "test_a.py").write_text(FAILS)
    for name in "defgh":
        (folder / f"test_{name}.py").write_text("import time\n\ndef test_it():\n    time.sleep(0.3)\n")
    status, out = _pytest(folder, "-x")
    assert status == 1
    assert "stopping after 1 failures" in out
    assert "9 passed" not in out


def test_errors_of_collection_end_it(folder: Path) -> None:
    (folder / "test_c.py").write_text("import no_such_module\n")
    status, out = _pytest(folder)
    assert status == pytest.ExitCode.INTERRUPTED
    assert "no_such_module" in out
    assert not (folder / "ran").exists()


def test_a_thread_of_a_module_is_refused(folder: Path) -> None:
    code = "import threading\n\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (folder / "test_c.py").write_text(code)
    status, out = _pytest(folder)
    assert status == pytest.ExitCode.USAGE_ERROR, out
    assert "a module of tests has started threads, which a fork loses" in out


def test_a_child_that_a_test_forgot_reports_nothing(folder: Path) -> None:
    (folder / "test_c.py").write_text(ORPHAN)
    status, out = _pytest(folder)
    assert status == 0, out
    assert "9 passed" in out
