"""A process that runs no Python is named with its place by others, whatever it is that keeps it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import until

from forebay.training.driver.rank_stack import MOST_FRAMES, kept_stack, place_of, silent_ranks, stacks_of

LIMIT_S = 0.2
RUN = f"ctr-{os.getpid()}"
JOB = """
import ctypes, os, re, signal, sys, threading, time
from forebay.training.driver.rank_stack import kept_stack

def train():
    {holds}

def decode():
    time.sleep(0.1)
    ctypes.PyDLL(None).sleep(60)

def beat():
    while True:
        alive(7)
        time.sleep({limit} / 8)

with kept_stack({run!r}, 3, {limit}) as alive:
    threading.Thread(target=beat, daemon=True).start()
    print("ready", flush=True)
    train()
"""
HOLDS = {
    "re.match(r'(a+)+$', 'a' * 60 + 'b')": r"holds .* lock in job\.py:6 in train > __init__\.py:\d+ in match",
    "ctypes.PyDLL(None).sleep(60)": r"holds the interpreter's lock in job\.py:6 in train(;|$)",
    "re.sub('a', lambda _: ctypes.PyDLL(None).sleep(60), 'a')": r"job\.py:6 in <lambda>",
    "threading.Thread(target=decode, daemon=True).start(); time.sleep(60)": (
        r"in job\.py:6 in train.*; of its other threads one is in job\.py:10 in decode"
    ),
    "os.kill(os.getpid(), signal.SIGSTOP)": r"its process \d+ is stopped, by a signal or a debugger",
}


@contextmanager
def process(tmp_path: Path, holds: str) -> Iterator[int]:
    (job := tmp_path / "job.py").write_text(JOB.format(holds=holds, run=RUN, limit=LIMIT_S))
    with subprocess.Popen([sys.executable, str(job)], stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None and started.stdout.readline() == b"ready\n"
            yield started.pid
        finally:
            started.kill()


@pytest.mark.parametrize("holds", HOLDS)
def test_what_holds_a_rank_is_named_with_its_place(tmp_path: Path, holds: str) -> None:
    with process(tmp_path, holds) as pid:
        until(lambda: silent_ranks(RUN, [pid]))
        (found,) = silent_ranks(RUN)
        assert (found.rank, found.step) == (3, 7)
        assert re.match(rf"rank 3 has taken no step for \d+ s and .*{HOLDS[holds]}", found.text), found.text
        assert silent_ranks("other") == []


def test_a_rank_that_runs_python_again_is_named_no_more(tmp_path: Path) -> None:
    with process(tmp_path, "time.sleep(600)") as pid:
        # A busy machine may give it no turn for longer than the limit.
        until(lambda: not silent_ranks(RUN, [pid]))
        os.kill(pid, signal.SIGSTOP)
        until(lambda: silent_ranks(RUN, [pid]))
        os.kill(pid, signal.SIGCONT)
        until(lambda: not silent_ranks(RUN, [pid]))


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"[1]",
        b'{"run": "%s"}' % RUN.encode(),
        b'{"run": "%s", "pid": %d, "thread": [], "at": "now"}' % (RUN.encode(), os.getpid()),
    ],
    ids=["empty", "list", "run", "types"],  # the ids of all test processes must be equal: no pid in them
)
def test_memory_of_that_name_that_holds_something_else_is_passed_over(held: bytes) -> None:
    memory = os.memfd_create("forebay-rank")
    try:
        dump = b'Timeout!\nThread 0x2a (most recent call first):\n  File "a.py", line 7 in f\n'
        os.write(memory, held.ljust(4096) + dump)
        assert silent_ranks(RUN, [os.getpid()]) == []
    finally:
        os.close(memory)


def test_nothing_stays_open_and_a_late_call_writes_nowhere() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with kept_stack(RUN, 0, 60.0) as alive:
        alive(1)
        assert silent_ranks(RUN) == []
    alive(2)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


FILES = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1)
FRAMES = st.lists(
    st.tuples(FILES, st.integers(1, 10**6), st.sampled_from(["f", "<lambda>", "a.<locals>.b"])), min_size=1
)


@given(st.dictionaries(st.integers(1, 2**48), FRAMES, min_size=1))
def test_stacks_are_read_as_faulthandler_writes_them(stacks: dict[int, list[tuple[str, int, str]]]) -> None:
    dump = "Timeout (0:00:01)!\n" + "\n".join(
        f"Thread 0x{thread:016x} (most recent call first):\n"
        + "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in reversed(frames))
        for thread, frames in stacks.items()
    )
    found = stacks_of(dump)
    assert {thread: [(f.filename, f.lineno, f.name) for f in frames] for thread, frames in found.items()} == stacks
    assert all(place_of(frames) for frames in found.values())


@given(st.text())
def test_a_dump_that_was_cut_is_no_error(text: str) -> None:
    dump = f'Thread 0x2a (most recent call first):\n  File "a.py", line 7 in f\n  ...\n{text}'
    assert place_of(stacks_of(dump)[42]).startswith("a.py:7 in f") or "Thread" in text or "File" in text


def test_the_place_begins_with_the_users_frame() -> None:
    deep = [FrameSummary(f"/x/site-packages/lib/{n}.py", n, f"f{n}", line="x") for n in range(9)]
    frames = [FrameSummary("/usr/lib/python3.11/threading.py", 1, "run", line="x")]
    frames += [FrameSummary("/home/me/job.py", 24, "train", line="lock.acquire()")]
    assert place_of(frames) == "job.py:24 in train: lock.acquire()"
    found = place_of([*frames, *deep])
    assert found.startswith("job.py:24 in train > ") and found.endswith("8.py:8 in f8")
    assert found.count(" > ") == MOST_FRAMES
