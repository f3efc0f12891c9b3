"""Locks between threads, processes and forked copies."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.storage.file_lock import FileLock, try_lock, wait_lock

SOON_S = 20.0
HOLD = """
import pathlib, sys
from forebay.storage.file_lock import try_lock
lock = try_lock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
input()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def held(path: Path) -> FileLock:
    lock = try_lock(path)
    assert lock
    return lock


def test_one_holder_at_a_time_within_a_process(path: Path) -> None:
    with held(path):
        assert try_lock(path) is None
        assert try_lock(path, shared=True) is None
    held(path).release()


def test_shared_holders_keep_out_an_exclusive_one(path: Path) -> None:
    first, second = try_lock(path, shared=True), try_lock(path, shared=True)
    assert first and second
    first.release()
    assert try_lock(path) is None
    second.release()
    held(path).release()


def test_release_twice_is_harmless(path: Path) -> None:
    lock = held(path)
    lock.release()
    with held(path):
        lock.release()
        assert try_lock(path) is None


def test_removed_file_cannot_be_locked_through_its_name(path: Path) -> None:
    lock = held(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        try_lock(path, flags=0)
    held(path).release()
    lock.release()


def test_wait_ends_when_the_holder_lets_go(path: Path) -> None:
    lock = held(path)
    start = time.monotonic()
    threading.Timer(0.1, lock.release).start()
    second = wait_lock(path, 60.0)
    assert second and 0.1 <= time.monotonic() - start < SOON_S
    second.release()


def test_wait_ends_at_the_deadline_and_when_cancelled(path: Path) -> None:
    cancelled = threading.Event()
    with held(path):
        start = time.monotonic()
        assert wait_lock(path, 0.1) is None
        assert 0.1 <= time.monotonic() - start < SOON_S
        threading.Timer(0.1, cancelled.set).start()
        assert wait_lock(path, 60.0, cancelled=cancelled) is None
        assert time.monotonic() - start < 2 * SOON_S


def test_lock_dies_with_its_process(path: Path, python: Callable[..., subprocess.Popen[str]]) -> None:
    holder = python(HOLD, path)
    assert holder.stdout and holder.stdout.readline() == "locked\n"
    assert try_lock(path) is None
    holder.kill()
    holder.wait()
    held(path).release()


def test_forked_child_does_not_hold_for_a_dead_parent(path: Path, python: Callable[..., subprocess.Popen[str]]) -> None:
    # The child reports: one that has not run yet still has the state of the fork.
    holder = python(HOLD.replace("print(", "import os; os.fork() or print(", 1), path)
    assert holder.stdout and holder.stdout.readline() == "locked\n"
    assert try_lock(path) is None, "the parent has it"
    holder.kill()
    holder.wait()
    held(path).release()


def test_forked_child_does_not_go_on_holding(path: Path) -> None:
    lock = held(path)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    lock.release()
    again = try_lock(path)
    os.write(write, b"x")
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert again
    again.release()
