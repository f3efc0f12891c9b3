"""Threads under real limits of memory: they begin, or a `ForebayError` says that they do not. None hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from forebay.errors import LimitReached
from forebay.runtime.foreign_code import begin
from forebay.runtime.threads import each_in_threads

_LIMITED = """
import os, resource, signal
from forebay.errors import LimitReached
from forebay.runtime import foreign_code, threads
from forebay.storage.deadline import call_with_deadline

foreign_code.BEGIN_S = 0.3

def single():
    return call_with_deadline(lambda: 42, 20.0) == 42

def many():
    return sorted(threads.each_in_threads(abs, range(5), most=3, name="t")) == [(each, each) for each in range(5)]

def outcome(call, extra):
    pid = os.fork()
    if pid == 0:
        signal.alarm(15)
        size = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, size + extra))
        try:
            code = 0 if call() else 3
        except LimitReached:
            code = 1
        except BaseException as error:
            os.write(2, type(error).__name__.encode() + b"\\n")
            code = 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

found = set()
for call in (single, many):
    for extra in (0, 1 << 20, *((8 << 20) + 4096 * pages for pages in range(0, 48, 3)), 1 << 30):
        found.add(outcome(call, extra))
print(sorted(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads its size from /proc")
def test_a_thread_that_memory_does_not_allow_is_an_error_and_no_hang() -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 1]", done.stderr


def test_thread_waits_for_the_event_that_is_replaced() -> None:
    """The private name that `begin` relies on: the day it moves, there is no limit."""
    thread = threading.Thread(target=int)
    begin(thread)
    thread.join()
    assert type(thread._started).__name__ == "_Began"  # type: ignore[attr-defined]
    hung = threading.Thread(target=int)
    hung._bootstrap = lambda: None  # type: ignore[attr-defined, method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.runtime.foreign_code.BEGIN_S", 0.05)
        with pytest.raises(LimitReached, match="has not begun within 0.05 s"):
            begin(hung)


@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_each_item_is_called_once(count: int, most: int) -> None:
    found = sorted(each_in_threads(lambda item: item * item, range(count), most=most, name="t"))
    assert found == [(item, item * item) for item in range(count)]
    assert not any(thread.name.startswith("t_") for thread in threading.enumerate())


def test_an_error_ends_the_iteration() -> None:
    def call(item: int) -> int:
        if item == 3:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError):
        list(each_in_threads(call, range(100), most=1, name="t"))


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_fewer_threads_do_the_work_of_all(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    if not allowed:
        with pytest.raises(LimitReached, match=r"ulimit -u.*ulimit -v"):
            list(each_in_threads(abs, range(9), most=4, name="t"))
    else:
        assert sorted(each_in_threads(abs, range(9), most=4, name="t")) == [(item, item) for item in range(9)]


@pytest.mark.parametrize("register", ["threading._register_atexit", "atexit.register"])
def test_after_the_main_thread_the_error_says_what_to_do(register: str) -> None:
    """Python 3.12 begins no thread from then on. 3.11 and 3.13 do."""
    script = f"""
import atexit, threading
from forebay.errors import LimitReached
from forebay.runtime.foreign_code import begin
def late():
    try:
        begin(threading.Thread(target=print, args=("begun",))).join()
    except LimitReached as error:
        print(error)
{register}(late)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    if sys.version_info[:2] == (3, 12):
        assert "Let it wait (`join`)" in done.stdout
    else:
        assert done.stdout == "begun\n"
    assert done.stderr == ""
