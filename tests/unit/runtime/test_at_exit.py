"""The end of a process while pages are decoded.

Only the program's exit code and output show.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 20_000_000
"""Decoded in 0.1 s and more on an idle core, in 5 MB of memory."""
PROGRAM = """
import atexit, sys, threading
names = lambda: [thread.name for thread in threading.enumerate() if "forebay" in thread.name]
# Registered first, so called last.
atexit.register(lambda: print("left:", names()))
import pyarrow as pa
import forebay as fb
from forebay.data import parquet as pages
from forebay.data.parquet import reading
decoding, original = threading.Event(), reading.decode

def decode(fetched):
    decoding.set()
    tables = [original(fetched) for _ in range(10)]
    print("decoded")
    return tables[0]

reading.decode = decode
plan = fb.build_plan(fb.scan(sys.argv[1]))
loader = fb.Loader(plan, fb.Transform(x=fb.Dense(["x"])), global_batch=16)
threading.Thread(target=lambda: next(iter(loader), None), daemon=True).start()
decoding.wait()
threading.excepthook = lambda _: None
loader.close(timeout_s=0.05)
print("closed:", names(), flush=True)
raise SystemExit(7)
"""


@pytest.fixture
def slow_file(tmp_path: Path) -> Path:
    path = tmp_path / "a.parquet"
    values = pa.array(np.zeros(ROWS, dtype=bool), mask=np.arange(ROWS) % 3 == 0)
    pq.write_table(pa.table({"x": values}), path, compression="zstd", row_group_size=ROWS)
    return path


def test_a_page_that_is_being_decoded_is_waited_for(slow_file: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(slow_file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    said = ["closed: ['forebay-data']", "decoded", "left: []"]
    assert (ended.stdout.splitlines(), ended.stderr, ended.returncode) == (said, "", 7)


def test_an_interrupt_ends_the_wait() -> None:
    # A shell starts background commands with SIGINT ignored, and children inherit that.
    script = """
import signal, threading
from forebay.runtime.at_exit import finished_before_exit
signal.signal(signal.SIGINT, signal.default_int_handler)
def work():
    with finished_before_exit():
        print("ending", flush=True)
        threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ending\n"
        give_up = time.monotonic() + 60
        while program.poll() is None and time.monotonic() < give_up:
            program.send_signal(signal.SIGINT)
            time.sleep(0.2)
        program.kill()
    assert program.returncode == -signal.SIGINT


def test_nothing_begins_in_a_process_that_ends() -> None:
    script = """
import atexit, threading
from forebay.errors import Cancelled
from forebay.runtime import at_exit
def work():
    try:
        with at_exit.finished_before_exit():
            raise AssertionError
    except Cancelled as error:
        print(error)
at_exit._wait_at_exit()
work()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("the process ends\n", "", 0)
