"""Process that imports what every worker needs once, and forks a worker for each request."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Literal

Request = tuple[Literal["fork"], None] | tuple[Literal["kill"], int] | tuple[Literal["wait"], tuple[int, float]]

POLL_S = 0.01
# macOS ends a forked process that uses one of its frameworks, which NumPy and torch do.
_CAN_FORK = sys.platform != "darwin"


class ForkServerLost(Exception):
    """The fork server has ended."""


class ForkServer:
    """The driver's side of its fork server.

    A worker needs 5 seconds of CPU time for imports (torch, its optimizers, Numba). With the server, all workers of all
    worlds of a run share one such start, and the memory of the imported modules.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server unless it is running. All workers of an earlier one have ended."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", _entry(theirs.fileno())], pass_fds=[theirs.fileno()], env=_environment()
            )
        self._connection = Connection(ours.detach())

    def fork(self, descriptor: int) -> int:
        """Fork a worker that inherits the socket `descriptor`. Returns its process id.

        Raises `ForkServerLost` if the server has ended.
        """
        assert self._process is not None, "start() comes first"
        try:
            self._connection.send(("fork", None))
            send_handle(self._connection, descriptor, self._process.pid)
            return int(self._connection.recv())
        except (EOFError, OSError):
            how = describe_exit(self._process.wait())
            raise ForkServerLost(f"the process that forks the workers {how}") from None

    def kill(self, pid: int) -> None:
        """Kill a worker, and wait for it. Does nothing if it has ended."""
        try:
            self._connection.send(("kill", pid))
            self._connection.recv()
        except (EOFError, OSError):  # the server was killed before its workers
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Exit code of a worker, negative for a signal. None if it has not ended by then, or nobody knows."""
        try:
            self._connection.send(("wait", (pid, timeout_s)))
            return self._connection.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """End the server. Its workers have ended before."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()


def describe_exit(code: int) -> str:
    """How a process ended, as text for a message: `was killed by SIGKILL`, `exited with code 1`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def serve(descriptor: int, *, can_fork: bool) -> int:
    """Entry of the server. Returns in each worker, with the socket to its driver. Never returns in the server.

    Without `can_fork` each worker is an interpreter of its own, and imports everything again.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the driver decides
    connection = Connection(descriptor)
    exit_codes: dict[int, int] = {}
    while True:
        try:
            request: Request = connection.recv()
            match request:
                case ("fork", _):
                    worker_end = recv_handle(connection)
                    pid = os.fork() if can_fork else _spawn(worker_end)
                    if pid == 0:
                        connection.close()
                        return worker_end
                    os.close(worker_end)
                    exit_codes.pop(pid, None)  # of an earlier worker with this id
                    connection.send(pid)
                case ("kill", int(pid)):
                    if _wait(pid, 0, exit_codes) is None:
                        os.kill(pid, signal.SIGKILL)
                        _wait(pid, float("inf"), exit_codes)
                    connection.send(None)
                case ("wait", (pid, timeout_s)):
                    connection.send(_wait(pid, timeout_s, exit_codes))
        except (EOFError, OSError):
            os._exit(0)  # the driver has ended


def _wait(pid: int, timeout_s: float, exit_codes: dict[int, int]) -> int | None:
    deadline = time.monotonic() + timeout_s
    while pid not in exit_codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            exit_codes[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= deadline:
            return None
        else:
            time.sleep(POLL_S)
    return exit_codes[pid]


def _entry(descriptor: int) -> str:
    # Not multiprocessing: its spawn imports the user's script again, which then needs an `if __name__` guard, and its
    # fork server is one for the whole process, with the environment of its first use.
    # torch imports _dynamo (1.7 s) at the first use of an optimizer, and the kernels import Numba (0.5 s) at theirs.
    preload = "import torch._dynamo, forebay.kernels.loops, forebay.kernels.orders" if _CAN_FORK else "pass"
    serve = f"fork_server.serve({descriptor}, can_fork={_CAN_FORK})"
    return _program(preload, f"child.main({serve})  # fork_server of {os.getpid()}")


def _spawn(descriptor: int) -> int:
    os.set_inheritable(descriptor, True)
    command = [sys.executable, "-c", _program("pass", f"child.main({descriptor})")]
    return os.posix_spawn(sys.executable, command, os.environ)


def _program(preload: str, main: str) -> str:
    return (
        f"import sys; sys.path[:] = {sys.path!r}; from forebay.driver.startup import without_gc\n"
        "with without_gc():\n"
        f"    {preload}\n"
        "    from forebay.driver.local import child, fork_server\n"
        f"{main}"
    )


def _environment() -> dict[str, str]:
    """This process's environment, with gloo bound to the loopback interface: the host name may resolve to an address
    that no worker can reach.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    return {**({"GLOO_SOCKET_IFNAME": loopback} if loopback else {}), **os.environ}
