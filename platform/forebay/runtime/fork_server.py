"""Fork server: imports once, and forks the workers."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recvfds, sendfds
from typing import Any, Literal

Call = tuple[Literal["fork"], str] | tuple[Literal["kill"], int] | tuple[Literal["wait"], tuple[int, float]]

POLL_S = 0.01
END_S = 10.0
"""Longest wait for a server that kills its workers."""
# macOS ends a forked process that uses one of its frameworks, which NumPy and torch do.
_DESCRIPTOR = "DESCRIPTOR"
_CAN_FORK = sys.platform != "darwin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Imports of a server, and the function of its workers.

    `preload` is a statement. `main` names a module and a function of it, which gets the descriptor of the worker's
    socket. `environment` is added to that of this process.
    """

    preload: str
    main: tuple[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


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

    def __init__(self, program: Program) -> None:
        self._program = program
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
        with socket_pair() as (ours, theirs):
            # First: a server whose start is interrupted here is unknown, and ends itself once this end is closed.
            self._connection = ours
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", _entry(self._program, theirs)],
                pass_fds=[theirs],
                env={**self._program.environment, **os.environ},
            )

    def fork(self, folder: str = "") -> tuple[Connection, int]:
        """Fork a worker.

        Returns the connection to it, and its process id. If this process ends before it removes `folder`, the server
        does. Raises `ForkServerLost` if the server has ended, and `OSError` if it cannot fork, or this process has no
        descriptor left.
        """
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as opened:
            connection, theirs = opened.enter_context(socket_pair())
            # Also at Ctrl-C: a notebook keeps the frame of this call, and a worker would wait for its start.
            undo.callback(connection.close)
            with self._lost_at_error():
                self._send(("fork", folder), theirs)
                opened.close()  # other threads may fork again, while the server imports
                answer = self._answer()
            if isinstance(answer, OSError):
                raise answer
            self._has_forked = True
            undo.pop_all()
        return connection, int(answer)

    def post_fork(self) -> Connection:
        """Fork a worker, without waiting for it.

        Returns the connection to it, which ends at once if the server cannot fork. A server that is asked so is asked
        nothing else. Raises `ForkServerLost` if the server has ended.
        """
        assert self._connection is not None, "start() comes first"
        with self._lost_at_error():
            while self._connection.poll():  # process ids of earlier ones
                self._connection.recv()
        with socket_pair() as (connection, theirs), self._lost_at_error():
            self._send(("fork", ""), theirs)
        return connection

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

        None if it has not ended by then, or is unknown.
        """
        try:
            return self._ask(("wait", (pid, timeout_s)))  # type: ignore[no-any-return]
        except ForkServerLost:
            return None

    def leave(self) -> None:
        """Close the connection in a forked child: the parent has the server."""
        if self._connection is not None:
            self._connection.close()

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

    def _ask(self, request: Call) -> Any:
        with self._lost_at_error():
            self._send(request)
            return self._answer()

    def _send(self, request: Call, descriptor: int | None = None) -> None:
        assert self._connection is not None, "start() comes first"
        self._connection.send(request)
        if descriptor is not None:
            send_descriptor(self._connection, descriptor)

    def _answer(self) -> Any:
        assert self._connection is not None
        return self._connection.recv()

    @contextlib.contextmanager
    def _lost_at_error(self) -> Iterator[None]:
        assert self._connection is not None
        try:
            yield
        except (EOFError, OSError):
            self._connection.close()
            raise ForkServerLost(self._end(END_S)) from None
        except BaseException:  # Ctrl-C: the next request would get the answer of this one. All workers end.
            self._connection.close()
            raise

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


_opening = threading.RLock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


@contextlib.contextmanager
def socket_pair() -> Iterator[tuple[Connection, int]]:
    """Open a connection, and the descriptor of its other end for another process, until the end of the block.

    No thread forks this process meanwhile: the child would hold the other end open, and the end of the process that got
    it would not be seen. If the block raises, closes the connection.
    """
    with _opening, contextlib.ExitStack() as undo:
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                end.setblocking(True)  # also after socket.setdefaulttimeout()
            connection = Connection(ours.detach())
            undo.callback(connection.close)
            yield connection, theirs.fileno()
            undo.pop_all()


@contextlib.contextmanager
def as_socket(connection: Connection) -> Iterator[socket.socket]:
    """Socket of a connection. Opens no descriptor, of which this process may have none left."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=connection.fileno())
    try:
        line.setblocking(True)  # also after socket.setdefaulttimeout()
        yield line
    finally:
        line.detach()


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send a descriptor after a message that announces it.

    The other end waits for it, and would take the next message for it.
    """
    with as_socket(connection) as line:
        sendfds(line, [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """Receive a descriptor. Raises `RuntimeError` if this process has none left."""
    with as_socket(connection) as line:
        return recvfds(line, 1)[0]


def describe_exit(code: int) -> str:
    """Describe how a process ended.

    `was killed by SIGKILL`, or `exited with code 1`.
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Pause the garbage collector during the block.

    Exempts all objects that exist at its end from later collections. For imports: in a worker they make a million
    objects, which all stay. Looking for garbage among them takes 15 to 30 % of the CPU time of a worker's start, and
    0.1 s of each full collection later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def serve(descriptor: int, spawn: str) -> int:
    """Entry of the server.

    Returns in each worker, with the socket to its owner. Never returns in the server. With a program `spawn`, each
    worker is an interpreter of its own that runs it, and imports everything again.
    """
    reset_in_forks(os.getpid())
    connection = Connection(descriptor)
    workers: dict[int, int | None] = {}  # exit codes, None of those that may run
    folders: set[str] = set()
    while True:
        try:
            request: Call = connection.recv()
            match request:
                case ("fork", str(folder)):
                    folders |= {folder} if folder else set()
                    _reap(workers)
                    worker_end = receive_descriptor(connection)
                    pid = _forked(spawn, worker_end)
                    if pid == 0:
                        connection.close()
                        return worker_end
                    os.close(worker_end)
                    if isinstance(pid, int):
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


def reset_in_forks(server: int) -> None:
    """Let SIGTERM end what this process and its children fork.

    Workers, which are forks of `server`, leave SIGTERM to their owner. A process that a train function forks would
    ignore `Process.terminate()`: a `multiprocessing.Pool` waits for its processes then, without limit.
    """
    ours, forking = signal.getsignal(signal.SIGTERM), threading.local()

    def hold() -> None:  # until the fork has its handler: the system would forget a signal before that
        forking.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.before)

    def reset() -> None:
        if os.getppid() != server and signal.getsignal(signal.SIGTERM) is ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=reset)


def _forked(spawn: str, worker_end: int) -> int | OSError:
    """Process id of a new worker, 0 in the worker itself, or why there is none: the others live on."""
    try:
        return _spawn(spawn, worker_end) if spawn else os.fork()
    except OSError as error:  # no process or memory is left for this user or container
        return error


def _reap(workers: dict[int, int | None]) -> None:
    """Collect the exit codes of ended workers.

    A server of many loaders would keep a zombie of each.
    """
    for pid in [pid for pid, code in workers.items() if code is None]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            workers[pid] = os.waitstatus_to_exitcode(status)


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
        elif connection.poll(POLL_S):  # the driver waits for the answer, or has ended
            raise EOFError
    return workers[pid]


def _entry(program: Program, descriptor: int) -> str:
    # Not multiprocessing: its spawn imports the user's script again, which then needs an `if __name__` guard, and its
    # fork server is one for the whole process, with the environment of its first use.
    module, function = program.main
    alone = f"fork_server.reset_in_forks(0); {module}.{function}({_DESCRIPTOR})"
    spawn = "" if _CAN_FORK else _program("pass", module, alone)
    call = f"{module}.{function}(fork_server.serve({descriptor}, {spawn!r}))  # fork_server of {os.getpid()}"
    return _program(program.preload if _CAN_FORK else "pass", module, call)


def _spawn(program: str, descriptor: int) -> int:
    os.set_inheritable(descriptor, True)
    command = [sys.executable, "-c", program.replace(_DESCRIPTOR, str(descriptor))]
    return os.posix_spawn(sys.executable, command, os.environ)


def _program(preload: str, module: str, call: str) -> str:
    # Ctrl-C and SIGTERM (of SLURM, `timeout` or a container) reach the whole process group, also during the imports.
    # The owner decides: it may save a checkpoint first. What a user's function starts must not ignore SIGTERM, too: a
    # program that it runs gets no handler, and `reset_in_forks` takes it from forks.
    return (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        f"import sys; sys.path[:] = {sys.path!r}; from forebay.runtime import fork_server\n"
        "with fork_server.without_gc():\n"
        f"    {preload}\n"
        f"    import {module}\n"
        f"{call}"
    )
