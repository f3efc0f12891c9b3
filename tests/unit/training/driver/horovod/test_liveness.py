from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from forebay.training.driver.elastic.pool import Connected, Lost
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


def test_a_worker_ends_when_it_is_told_to_and_is_lost_only_then(
    lines: LivenessServer, worker: subprocess.Popen[bytes], signs: queue.SimpleQueue[LivenessMessage]
) -> None:
    assert signs.get(timeout=WAIT_S) == Connected(name="w", node="n")
    assert signs.get(timeout=WAIT_S) == Entered(name="w", world=3)
    worker.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
    assert lines.names == ["w"]
    lines.end("w")
    with pytest.raises(queue.Empty):
        signs.get(timeout=STILL_S)
    assert lines.names == ["w"]
    worker.send_signal(signal.SIGCONT)
    assert signs.get(timeout=WAIT_S) == Lost(name="w")
    assert worker.wait(WAIT_S) == 1
    assert lines.names == []
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
