"""Calls that answer, fail, hang, or are no longer needed, and the end of a process in the middle of one."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import Cancelled
from forebay.storage.deadline import Cancellation, call_with_deadline

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
def stuck() -> Iterator[threading.Event]:
    """Event that a hanging read waits for.

    It is set after the test so that no thread outlives it.
    """
    release = threading.Event()
    yield release
    release.set()


def test_result_and_error_pass_through() -> None:
    assert call_with_deadline(lambda: 42, 60.0) == 42
    with pytest.raises(KeyError, match="gone"):
        call_with_deadline(lambda: {}["gone"], 60.0, Cancellation())


def test_a_hanging_call_is_abandoned_at_its_deadline(stuck: threading.Event) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        call_with_deadline(stuck.wait, 0.1)
    assert time.monotonic() - start < 30.0
    threads = [thread for thread in threading.enumerate() if thread.name == "forebay-read"]
    assert threads
    assert all(thread.daemon for thread in threads)


def test_the_abandoned_thread_ends_when_the_read_returns(stuck: threading.Event) -> None:
    with pytest.raises(TimeoutError):
        call_with_deadline(stuck.wait, 0.05)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "forebay-read")
    stuck.set()
    thread.join(60.0)
    assert not thread.is_alive()


def test_cancelling_is_prompt(stuck: threading.Event) -> None:
    cancelled = Cancellation()
    timer = threading.Timer(0.1, cancelled.set)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        call_with_deadline(stuck.wait, 60.0, cancelled)
    assert time.monotonic() - start < 30.0
    timer.join()


def test_a_waiting_call_does_not_poll() -> None:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    call_with_deadline(lambda: time.sleep(1.0), 60.0, Cancellation())
    wakes = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert wakes < 20, "a look every 20 ms would be 50"


def test_one_cancellation_ends_all_calls_that_wait(stuck: threading.Event) -> None:
    cancelled, ended = Cancellation(), threading.Semaphore(0)

    def wait() -> None:
        with pytest.raises(Cancelled):
            call_with_deadline(stuck.wait, 60.0, cancelled)
        ended.release()

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    cancelled.set()
    assert all(ended.acquire(timeout=30.0) for _ in threads)
    for thread in threads:
        thread.join()


def test_events_follow_a_cancellation_within_their_block_only() -> None:
    cancelled, early, late, never = Cancellation(), threading.Event(), threading.Event(), threading.Event()
    with cancelled.followed_by(never):
        pass
    with cancelled.followed_by(early):
        cancelled.set()
        assert early.is_set()
    with cancelled.followed_by(late):
        assert late.is_set()
    assert not never.is_set()


def test_nothing_is_started_once_cancelled() -> None:
    cancelled = Cancellation()
    cancelled.set()
    called: list[int] = []
    with pytest.raises(Cancelled):
        call_with_deadline(lambda: called.append(1), 60.0, cancelled)
    assert not called


@pytest.mark.parametrize(("takes_s", "patience", "said"), [(0.5, "deadline._READS_S = 30", "returned"), (60, "", "")])
def test_the_end_of_the_process_waits_for_what_is_about_to_return_but_not_for_long(
    takes_s: float, patience: str, said: str
) -> None:
    script = f"""
import threading, time
from forebay.storage import deadline
{patience}
def read():
    time.sleep({takes_s})
    print("returned", end="")
try:
    deadline.call_with_deadline(read, 0.05)
except TimeoutError:
    pass
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=40, check=False)
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr


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
from forebay.storage.deadline import finished_before_exit
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
from forebay.storage import deadline
def work():
    try:
        with deadline.finished_before_exit():
            raise AssertionError
    except Cancelled as error:
        print(error)
deadline._wait_at_exit()
work()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("the process ends\n", "", 0)
