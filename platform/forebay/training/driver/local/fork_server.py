"""Fork server: imports once, and forks the workers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Literal

Call = tuple[Literal["fork"], str] | tuple[Literal["kill"], int] | tuple[Literal["wait"], tuple[int, float]]

POLL_S = 0.01
END_S = 10.0
"""Longest wait for a server that kills its workers."""
# macOS ends a forked process that uses one of its frameworks, which NumPy and torch do.
_CAN_FORK = sys.platform != "darwin"


class ForkServerLost(Exception):
    """The fork server has ended.

    `code` is its exit code, which is negative for a signal.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the process that forks the workers {describe_exit(code)}")
        self.code = code


class ForkServer:
    """The driver's side of its fork server.

    A worker needs 5 seconds of CPU time for imports (torch, its optimizers, Numba). With the server, all workers of all
    worlds of a run share one such start, and the memory of the imported modules.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._has_forked = False

    def start(self) -> None:
        """Start the server unless it is running.

        All workers of an earlier one have ended.
        """
        if self._is_running():
            return
        self.close()
        self._has_forked = False
        ours, theirs = socket.socketpair()
        # First: a server whose start is interrupted here is unknown, and ends itself once this end is closed.
        self._connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", _entry(theirs.fileno())], pass_fds=[theirs.fileno()], env=_environment()
            )

    def fork(self, descriptor: int, folder: str) -> int:
        """Fork a worker that inherits the socket `descriptor`.

        Returns its process id. If the driver ends before it removes `folder`, with the rendezvous of the workers, the
        server does. Raises `ForkServerLost` if the server has ended.
        """
        pid = int(self._ask(("fork", folder), descriptor))
        self._has_forked = True
        return pid

    def kill(self, pid: int) -> None:
        """Kill a worker, and wait for it.

        Does nothing if it has ended.
        """
        try:
            self._ask(("kill", pid))
        except ForkServerLost as lost:
            if lost.code != 0:  # it was killed itself, before its workers
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return a worker's exit code, negative for a signal.

        None if it has not ended by then, or nobody knows.
        """
        try:
            return self._ask(("wait", (pid, timeout_s)))  # type: ignore[no-any-return]
        except ForkServerLost:
            return None

    def close(self) -> None:
        """End the server, and all workers that it forked."""
        if self._connection is not None:
            self._connection.close()
        # A server that has not answered yet may be at its imports, for seconds. A worker that it has just forked ends
        # itself, because its connection was closed.
        self._end(END_S if self._has_forked else 0.0)

    def _is_running(self) -> bool:
        is_connected = self._connection is not None and not self._connection.closed
        return is_connected and self._process is not None and self._process.poll() is None

    def _ask(self, request: Call, descriptor: int | None = None) -> Any:
        assert self._connection is not None, "start() comes first"
        assert self._process is not None
        with contextlib.ExitStack() as undo:
            # Also at Ctrl-C: the next request would get the answer of this one. The server ends, with all workers.
            undo.callback(self._connection.close)
            try:
                self._connection.send(request)
                if descriptor is not None:
                    send_handle(self._connection, descriptor, self._process.pid)
                answer = self._connection.recv()
            except (EOFError, OSError):
                self._connection.close()
                raise ForkServerLost(self._end(END_S)) from None
            undo.pop_all()
            return answer

    def _end(self, timeout_s: float) -> int:
        """Wait for a disconnected server.

        It ends its workers and itself. Returns its exit code.
        """
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def describe_exit(code: int) -> str:
    """Describe how a process ended.

    `was killed by SIGKILL`, or `exited with code 1`.
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def serve(descriptor: int, *, can_fork: bool) -> int:
    """Entry of the server.

    Returns in each worker, with the socket to its driver. Never returns in the server. Without `can_fork` each worker
    is an interpreter of its own, and imports everything again.
    """
    connection = Connection(descriptor)
    workers: dict[int, int | None] = {}  # exit codes, None of those that may run
    folders: set[str] = set()
    while True:
        try:
            request: Call = connection.recv()
            match request:
                case ("fork", str(folder)):
                    folders.add(folder)
                    worker_end = recv_handle(connection)
                    pid = os.fork() if can_fork else _spawn(worker_end)
                    if pid == 0:
                        connection.close()
                        return worker_end
                    os.close(worker_end)
                    workers[pid] = None
                    connection.send(pid)
                case ("kill", int(pid)):
                    _kill(pid, workers)
                    connection.send(None)
                case ("wait", (pid, timeout_s)):
                    connection.send(_wait(pid, timeout_s, workers, connection))
        except (EOFError, OSError):
            # The driver has ended, or was interrupted. A worker may be unable to notice it: it is stopped, or in a call
            # that holds the GIL.
            for pid in workers:
                _kill(pid, workers)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)


def _kill(pid: int, workers: dict[int, int | None]) -> None:
    if workers[pid] is None:
        os.kill(pid, signal.SIGKILL)  # it cannot be the id of another process before waitpid()
        workers[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _wait(pid: int, timeout_s: float, workers: dict[int, int | None], connection: Connection) -> int | None:
    deadline = time.monotonic() + timeout_s
    while workers[pid] is None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            workers[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= deadline:
            return None
        elif connection.poll(POLL_S):  # nobody asks before the answer: the driver has ended
            raise EOFError
    return workers[pid]


def _entry(descriptor: int) -> str:
    # Not multiprocessing: its spawn imports the user's script again, which then needs an `if __name__` guard, and its
    # fork server is one for the whole process, with the environment of its first use.
    # torch imports _dynamo (1.7 s) at the first use of an optimizer, and the kernels import Numba (0.5 s) at theirs.
    kernels = "from forebay.data.parquet import page_kernels; page_kernels.load()"
    preload = f"import torch._dynamo; {kernels}" if _CAN_FORK else "pass"
    serve = f"fork_server.serve({descriptor}, can_fork={_CAN_FORK})"
    return _program(preload, f"child.main({serve})  # fork_server of {os.getpid()}")


def _spawn(descriptor: int) -> int:
    os.set_inheritable(descriptor, True)
    command = [sys.executable, "-c", _program("pass", f"child.main({descriptor})")]
    return os.posix_spawn(sys.executable, command, os.environ)


def _program(preload: str, main: str) -> str:
    # Ctrl-C reaches the whole process group, also during the imports. The driver decides.
    return (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"import sys; sys.path[:] = {sys.path!r}; from forebay.training.driver.warm_up import without_gc\n"
        "with without_gc():\n"
        f"    {preload}\n"
        "    from forebay.training.driver.local import child, fork_server\n"
        f"{main}"
    )


def _environment() -> dict[str, str]:
    """Return the environment, with gloo bound to loopback.

    The host name may resolve to an address that no worker can reach.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    return {**({"GLOO_SOCKET_IFNAME": loopback} if loopback else {}), **os.environ}
