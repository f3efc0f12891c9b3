"""Children of the benches end with everything that they started, and the reason is known. Their work is counted."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
from tests.waiting import until

Bench = Callable[[str], ModuleType]
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""

NUM_BYTES = 8 << 20
WRITER = """
import sys
data = bytes(8 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(data)
print(flush=True)
sys.stdin.read()
"""


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


def test_counts_see_the_work_of_this_process(bench: Bench, tmp_path: Path) -> None:
    counts = bench("process_counts")
    before = counts.counts_now()
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(bytes(NUM_BYTES))
    found = counts.counts_since(before)
    assert found.keys() == counts.COUNTS.keys()
    assert NUM_BYTES <= found["written_bytes"] < 1.01 * NUM_BYTES
    assert found["write_calls"] >= 1

    before = counts.counts_now()
    (tmp_path / "file").read_bytes()
    assert NUM_BYTES <= counts.counts_since(before)["read_bytes"] < 1.1 * NUM_BYTES

    memory = mmap.mmap(-1, NUM_BYTES)
    before = counts.counts_now()
    np.frombuffer(memory, np.uint8)[:] = 1
    touched = counts.counts_since(before)["minor_faults"]
    assert touched >= NUM_BYTES / (2 << 20), "each page is touched once, of 4 KiB or 2 MiB"

    before = counts.counts_now()
    for _ in range(20):
        time.sleep(0.001)
    assert counts.counts_since(before)["waits"] >= 20


def test_counts_see_processes_below_while_they_run_and_after(bench: Bench, tmp_path: Path) -> None:
    counts = bench("process_counts")
    before = counts.counts_now()
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin
    assert child.stdout
    child.stdout.readline()
    assert child.pid in counts.family()
    running = counts.counts_since(before)
    child.communicate()
    ended = counts.counts_since(before)
    for found in (running, ended):
        assert NUM_BYTES <= found["written_bytes"] < 1.01 * NUM_BYTES
        assert found["minor_faults"] >= 100
