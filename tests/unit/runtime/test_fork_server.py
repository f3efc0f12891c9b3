"""Fork server: workers outlive what ends a group of processes, and the failure of another fork."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.descriptors import no_descriptors

from forebay.runtime.fork_server import ForkServer, Program, socket_pair

ECHO = """
from multiprocessing.connection import Connection

def main(descriptor):
    connection = Connection(descriptor)
    while True:
        connection.send(connection.recv())
"""
FORKING = """
import multiprocessing
import signal
import threading
import time
from multiprocessing.connection import Connection

def main(descriptor):
    with Connection(descriptor) as connection:
        connection.recv()
        thread = threading.Thread(target=lambda: connection.send([end(None), end(signal.default_int_handler)]))
        thread.start()
        thread.join()

def end(handler):
    process = multiprocessing.get_context("fork").Process(target=sleep, args=(handler,))
    process.start()
    time.sleep(0.2)
    process.terminate()
    process.join(10)
    code = process.exitcode
    process.kill()
    return code

def sleep(handler):
    if handler is not None:
        signal.signal(signal.SIGTERM, handler)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        raise SystemExit(7)
"""
FAIL_SECOND = """
import os
fork, calls = os.fork, []

def fork_but_second():
    calls.append(0)
    if len(calls) == 2:
        raise BlockingIOError(11, "no process is left")
    return fork()

os.fork = fork_but_second
"""


@pytest.fixture
def make_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ForkServer]]:
    (tmp_path / "echo_worker.py").write_text(ECHO)
    (tmp_path / "forking_worker.py").write_text(FORKING)
    (tmp_path / "few_processes.py").write_text(FAIL_SECOND)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[ForkServer] = []

    def make(preload: str = "pass", worker: str = "echo_worker") -> ForkServer:
        made.append(ForkServer(Program(preload=preload, main=(worker, "main"))))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.close()


def echo(connection: object) -> str:
    connection.send("here")  # type: ignore[attr-defined]
    answer: str = connection.recv()  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_outlive_a_signal_to_the_group_of_their_owner(
    make_server: Callable[[], ForkServer], number: signal.Signals
) -> None:
    server = make_server()
    first, pid = server.fork()
    assert echo(first) == "here"
    assert server._process is not None
    os.kill(pid, number)
    os.kill(server._process.pid, number)
    second, _ = server.fork()
    assert (echo(first), echo(second)) == ("here", "here")
    server.kill(pid)
    assert server.wait(pid, 10.0) == -signal.SIGKILL


def test_what_a_worker_forks_can_be_ended(make_server: Callable[..., ForkServer]) -> None:
    """A `multiprocessing.Pool` ends its processes by SIGTERM, and then waits for them without limit."""
    connection, _ = make_server(worker="forking_worker").fork()
    connection.send("begin")
    assert connection.recv() == [-signal.SIGTERM, 7]


def test_a_signal_to_a_fork_is_kept_until_the_fork_has_its_handler(make_server: Callable[..., ForkServer]) -> None:
    slow = "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(0.5))"
    connection, _ = make_server(slow, "forking_worker").fork()
    connection.send("begin")
    assert connection.recv() == [-signal.SIGTERM, -signal.SIGTERM]


def test_no_descriptor_left_ends_no_other_worker(
    make_server: Callable[[], ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    server = make_server()
    first, _ = server.fork()
    with monkeypatch.context() as patch:
        patch.setattr("forebay.runtime.fork_server.socket.socketpair", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            server.fork()
    second, _ = server.fork()
    assert (echo(first), echo(second)) == ("here", "here")


@pytest.fixture
def short_timeout() -> Iterator[None]:
    socket.setdefaulttimeout(0.01)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("short_timeout")
def test_a_timeout_of_the_user_s_sockets_ends_no_wait(make_server: Callable[[], ForkServer]) -> None:
    server = make_server()
    first, _ = server.fork()
    second = server.post_fork()
    assert [os.get_blocking(each.fileno()) for each in (first, second)] == [True, True]
    assert (echo(first), echo(second)) == ("here", "here")


@pytest.mark.parametrize("but", range(4))
def test_the_last_descriptors_are_enough_or_end_no_other_worker(
    make_server: Callable[[], ForkServer], but: int
) -> None:
    server = make_server()
    first, _ = server.fork()
    second = first
    refused = pytest.raises(OSError, match="Too many open files") if but < 2 else nullcontext()
    with no_descriptors(but=but), refused:
        second, _ = server.fork()
    third = server.post_fork()
    assert [echo(each) for each in (first, second, third)] == ["here"] * 3


def test_a_fork_that_fails_ends_no_other_worker(make_server: Callable[[str], ForkServer]) -> None:
    server = make_server("import few_processes")
    first, _ = server.fork()
    with pytest.raises(OSError, match="no process is left"):
        server.fork()
    third, _ = server.fork()
    assert (echo(first), echo(third)) == ("here", "here")


def test_a_posted_fork_that_fails_closes_its_connection(make_server: Callable[[str], ForkServer]) -> None:
    server = make_server("import few_processes")
    first, second, third = (server.post_fork() for _ in range(3))
    with pytest.raises(EOFError):
        second.recv()
    assert (echo(first), echo(third)) == ("here", "here")


def test_no_fork_of_this_process_gets_the_other_end_of_a_worker() -> None:
    def fork() -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    forking = threading.Thread(target=fork)
    with socket_pair() as (connection, theirs):
        forking.start()
        forking.join(0.2)
        assert forking.is_alive(), "a child has the other end, and keeps the connection open"
        assert os.fstat(theirs)
    forking.join(60)
    assert not forking.is_alive()
    with pytest.raises(EOFError):
        connection.recv()
