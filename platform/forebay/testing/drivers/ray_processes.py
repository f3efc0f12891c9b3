"""Processes of a Ray node, suspended and ended together.

Needs no Ray in this process.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import psutil

BIN = Path(sys.executable).parent
RAY = str(BIN / "ray")
FIRST_PORT, NUM_PORTS = 20_000, 12_000
HEAD_PORTS = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
"""Ports of a head that other heads of the machine would take by default."""


class NodeProcesses:
    """A Ray command and all processes that it started.

    The command starts a Ray node or talks to one. Its processes may be indirect descendants.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: BinaryIO | int) -> None:
        # The entry point of a Ray job is `python` of the node's PATH.
        path = os.pathsep.join([str(BIN), environment.get("PATH", os.environ["PATH"])])
        self.command = subprocess.Popen(  # noqa: S603 - words of the caller
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, "PATH": path},
            start_new_session=True,
        )
        self._seen: dict[int, psutil.Process] = {}

    def signal(self, number: int) -> None:
        """Send a signal to all processes."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        """Processes that run.

        One whose parent has ended is known if it was seen before.
        """
        with suppress(psutil.NoSuchProcess):
            head = psutil.Process(self.command.pid)
            self._seen |= {each.pid: each for each in (head, *head.children(recursive=True))}
        return [each for each in self._seen.values() if each.is_running()]

    def kill(self) -> None:
        """End all processes."""
        self.signal(signal.SIGKILL)
        self.command.wait()


def head_options() -> dict[str, int]:
    """Free ports for `HEAD_PORTS` of `ray start --head`."""
    return dict(zip(HEAD_PORTS, free_ports(len(HEAD_PORTS)), strict=True))


def free_ports(count: int) -> list[int]:
    """Free, distinct ports of the loopback interface.

    They are below the ports that the system gives to connections.
    """
    found: list[int] = []
    with ExitStack() as open_sockets:
        while len(found) < count:
            one = open_sockets.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", FIRST_PORT + secrets.randbelow(NUM_PORTS)))
                found.append(one.getsockname()[1])
    return found
