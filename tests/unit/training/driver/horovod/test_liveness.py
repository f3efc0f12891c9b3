from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from forebay.training.driver.elastic.pool import Connected, Lost
from forebay.training.driver.horovod import liveness
from forebay.training.driver.horovod.liveness import Entered, LivenessMessage, LivenessServer

WAIT_S = 30.0
STILL_S = 0.3
WORKER = """
import sys, threading
from forebay.training.driver.horovod.liveness import LivenessClient, LineAddress
line = LivenessClient(LineAddress(host="127.0.0.1", port=int(sys.argv[1]), token=sys.argv[2]), name="w", node="n")
line.entered(3)
threading.Event().wait()
"""


@pytest.fixture
def signs() -> queue.SimpleQueue[LivenessMessage]:
    return queue.SimpleQueue()


@pytest.fixture
def lines(signs: queue.SimpleQueue[LivenessMessage]) -> Iterator[LivenessServer]:
    lines = LivenessServer("127.0.0.1", signs.put)
    yield lines
    lines.close()


@pytest.fixture
def worker(lines: LivenessServer) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(lines.address.port), lines.address.token])
    yield process
    process.kill()
    process.wait()


def test_a_worker_is_heard_of_until_it_is_killed(
    worker: subprocess.Popen[bytes], signs: queue.SimpleQueue[LivenessMessage]
) -> None:
    assert signs.get(timeout=WAIT_S) == Connected(name="w", node="n")
    assert signs.get(timeout=WAIT_S) == Entered(name="w", world=3)
    worker.send_signal(signal.SIGKILL)
    assert signs.get(timeout=WAIT_S) == Lost(name="w")


def test_a_stranger_is_no_worker(lines: LivenessServer, signs: queue.SimpleQueue[LivenessMessage]) -> None:
    for hello in (b'{"token": "guessed", "name": "w", "node": "n"}\n', b"GET / HTTP/1.0\r\n\r\n", b"\n"):
        with socket.create_connection(("127.0.0.1", lines.address.port)) as stranger:
            stranger.sendall(hello)
            assert stranger.recv(1) == b"", "the line was not cut"
    assert signs.empty()


TOKEN = "the token"
HELLO = {"token": TOKEN, "name": "w", "node": "n"}
DAMAGED = [
    b"[]\n",
    b"null\n",
    b"[" * 4_000 + b"\n",
    b"\xff\xfe\n",
    b"9" * 4_000 + b"\n",
    *(
        json.dumps(HELLO | changed).encode() + b"\n"
        for changed in ({"token": "t\u00f6ken"}, {"token": "\ud800"}, {"token": 7})
    ),
    *(json.dumps({key: HELLO[key] for key in HELLO if key != left}).encode() + b"\n" for left in HELLO),
    *(json.dumps(HELLO | {key: value}).encode() + b"\n" for key in ("name", "node") for value in (None, 7, [], {})),
    b"x" * 10_000 + b"\n",
]


@pytest.mark.parametrize("sent", DAMAGED)
def test_any_bytes_end_a_connection_and_nothing_else(
    lines: LivenessServer, signs: queue.SimpleQueue[LivenessMessage], sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    stranger = socket.create_connection(("127.0.0.1", lines.address.port), timeout=WAIT_S)
    with stranger, suppress(ConnectionError):  # where the server has not read all of it
        stranger.sendall(sent.replace(TOKEN.encode(), lines.address.token.encode()))
        assert stranger.recv(1) == b""
    assert signs.empty() and list(lines.names) == [] and capfd.readouterr().err == ""


@pytest.mark.parametrize("entered", [b"x\n", b"-1\n", b"\n", b"9" * 5_000 + b"\n", b"1" * 30 + b"\n", b"\xb2\n"])
def test_a_worker_that_sends_no_number_is_lost(
    lines: LivenessServer, signs: queue.SimpleQueue[LivenessMessage], entered: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", lines.address.port), timeout=WAIT_S) as worker:
        worker.sendall(json.dumps(HELLO | {"token": lines.address.token}).encode() + b"\n3\n" + entered)
        assert [signs.get(timeout=WAIT_S) for _ in range(3)] == [
            Connected(name="w", node="n"),
            Entered(name="w", world=3),
            Lost(name="w"),
        ]
    assert list(lines.names) == [] and capfd.readouterr().err == ""


def test_silent_and_slow_peers_are_bounded_in_number_and_time(
    lines: LivenessServer, signs: queue.SimpleQueue[LivenessMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "MOST_SILENT", 3)
    monkeypatch.setattr(liveness, "HELLO_S", 600.0)
    port = lines.address.port
    silent = [socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) for _ in range(10)]
    for closed in silent[:7]:
        assert closed.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as worker:
        worker.sendall(json.dumps(HELLO | {"token": lines.address.token}).encode() + b"\n")
        assert signs.get(timeout=WAIT_S) == Connected(name="w", node="n")
        monkeypatch.setattr(liveness, "HELLO_S", 0.2)
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as slow:
            slow.sendall(b"{")
            assert slow.recv(1) == b"", "it has not sent a line in time"
        assert list(lines.names) == ["w"], "a worker may be silent after its hello"
    for each in silent:
        each.close()


def test_a_worker_ends_when_it_is_told_to_and_is_lost_only_then(
    lines: LivenessServer, worker: subprocess.Popen[bytes], signs: queue.SimpleQueue[LivenessMessage]
) -> None:
    assert signs.get(timeout=WAIT_S) == Connected(name="w", node="n")
    assert signs.get(timeout=WAIT_S) == Entered(name="w", world=3)
    worker.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
    assert list(lines.names) == ["w"]
    lines.end("w")
    with pytest.raises(queue.Empty):
        signs.get(timeout=STILL_S)
    assert list(lines.names) == ["w"]
    worker.send_signal(signal.SIGCONT)
    assert signs.get(timeout=WAIT_S) == Lost(name="w")
    assert worker.wait(WAIT_S) == 1
    assert list(lines.names) == []
    lines.end("w")


def test_no_worker_outlives_the_end_of_all_lines(
    lines: LivenessServer, worker: subprocess.Popen[bytes], signs: queue.SimpleQueue[LivenessMessage]
) -> None:
    assert signs.get(timeout=WAIT_S) == Connected(name="w", node="n")
    with socket.create_connection(("127.0.0.1", lines.address.port)) as late:
        with socket.create_connection(("127.0.0.1", lines.address.port)) as later:
            later.sendall(b"\n")
            assert later.recv(1) == b"", "by now the first of the two has been accepted too"
        lines.close()
        assert worker.wait(WAIT_S) == 1
        late.sendall(b'{"token": "%s", "name": "late", "node": "n"}\n' % lines.address.token.encode())
        late.settimeout(WAIT_S)
        assert late.recv(1) == b"", "it was greeted, and would be waited for by nobody"


def test_a_worker_ends_with_its_driver() -> None:
    with socket.create_server(("127.0.0.1", 0)) as driver:
        port = driver.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", WORKER, str(port), "token"]) as orphan:
            line, _ = driver.accept()
            line.close()
            assert orphan.wait(WAIT_S) == 1
