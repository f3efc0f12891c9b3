"""Children of the benches end with everything that they started, and the reason of their end is known."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

Bench = Callable[[str], ModuleType]
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process runs. A zombie that its new parent has not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_ends_with_all_its_processes(bench: Bench, tmp_path: Path) -> None:
    processes, output = bench("processes"), tmp_path / "output"
    with processes.child_session([sys.executable, "-c", PARENT], output, dict(os.environ)) as child:
        until(lambda: processes.last_line(output) != "none")
        grandchild = int(processes.last_line(output))
        assert is_running(grandchild)
    assert child.returncode == -signal.SIGKILL
    until(lambda: not is_running(grandchild))


def test_a_child_that_does_not_end_is_killed(bench: Bench, tmp_path: Path) -> None:
    processes, output = bench("processes"), tmp_path / "output"
    assert processes.last_line(output) == "none"
    line = [sys.executable, "-c", PARENT]
    assert processes.run_child(line, output, dict(os.environ), 0.4) == "did not end within 0 s"


def test_a_child_that_fails_leaves_its_last_line(bench: Bench, tmp_path: Path) -> None:
    processes, output = bench("processes"), tmp_path / "output"
    line = [sys.executable, "-c", "raise SystemExit('no such system')"]
    assert processes.run_child(line, output, dict(os.environ), 120) == "ended with code 1"
    assert processes.last_line(output) == "no such system"
