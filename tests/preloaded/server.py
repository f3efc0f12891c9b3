"""Server that has imported what workers of Ray need, and forks a process for each of its clients."""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.preloaded.client import AGENTS, PREFIX

# Not Ray: its library reads variables of the process, such as the id of the job, when it is loaded.
MODULES = (
    *("torch", "torch.optim", "torch.distributed.checkpoint", "torch.utils.data"),
    *("pyarrow.parquet", "pyarrow.dataset", "pyarrow.fs", "fsspec.implementations.local", "pandas"),
    *("grpc", "google.protobuf.json_format", "google.protobuf.struct_pb2", "jsonschema", "yaml", "requests", "aiohttp"),
    *("psutil", "packaging.version", "msgpack", "filelock", "tqdm.auto", "click", "rich.console", "rich.live"),
    *("pydantic.main", "pydantic.dataclasses", "pydantic.json_schema", "pydantic._internal._schema_gather"),
    *("opencensus.stats.stats", "opentelemetry.exporter.prometheus", "opentelemetry.sdk.metrics", "prometheus_client"),
    *("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc", "aiohttp_cors", "colorful"),
    *("forebay.training.worker.worker", "forebay.training.checkpoint.checkpoint", "forebay.data.loader.loader"),
)
SET_UP = "_private/workers/setup_worker.py"
FORKED = (
    *("_private/workers/default_worker.py", SET_UP, "dashboard/agent.py", "_private/runtime_env/agent/main.py"),
    *("dashboard/dashboard.py", "_private/log_monitor.py", "autoscaler/_private/monitor.py"),
)
"""Scripts of Ray that are forked. Any other starts in a Python of its own."""
FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})


@dataclass(frozen=True)
class ForkRequest:
    """A command line, and where it was called."""

    caller: int
    folder: bytes
    words: Sequence[str]
    variables: dict[bytes, bytes]

    @classmethod
    def parse(cls, text: bytes) -> ForkRequest:
        caller, folder, count, *rest = text.split(b"\0")
        words, variables = rest[: int(count)], rest[int(count) :]
        named = (each.partition(b"=") for each in variables)
        return cls(int(caller), folder, [os.fsdecode(each) for each in words], {key: value for key, _, value in named})


class PythonServer:
    """Forks a process per connection, and sends its status there. A connection that ends, ends its process."""

    def __init__(self, address: str) -> None:
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(128)
        self._ended, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in (self._listener, self._ended, sys.stdin):
            self._selector.register(each, selectors.EVENT_READ)

    def serve(self) -> ForkRequest | None:
        """Fork until the standard input ends. Returns a request in a process that is to run it."""
        while True:
            for key, _ in self._selector.select():
                found = key.fileobj
                if found is sys.stdin:
                    self._kill(*self._children)
                    signal.set_wakeup_fd(-1)
                    return None
                if found is self._ended:
                    self._reap()
                elif found is self._listener:
                    if (request := self._fork()) is not None:
                        return request
                elif found.fileno() >= 0:  # else its process was found to have ended, in this round
                    self._selector.unregister(found)
                    self._kill(*(pid for pid, connection in self._children.items() if connection is found))

    def _fork(self) -> ForkRequest | None:
        connection = self._listener.accept()[0]
        asked = _receive(connection)
        if asked is None:
            connection.close()
            return None
        request, descriptors = asked
        assert threads() <= FORK_SAFE_THREADS, f"a fork loses threads: {threads()}"
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for each in (self._listener, self._ended, self._waker, connection, *self._children.values()):
                each.close()
            _enter(request, descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ)
        return None

    def _kill(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        self._ended.recv(1000)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._children.pop(found[0])
                with suppress(KeyError):  # the client has ended before
                    self._selector.unregister(connection)
                with connection, suppress(OSError):
                    connection.send(found[1].to_bytes(4, "big"))


def _receive(connection: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Read a request and three descriptors. None from a client that has ended."""
    with suppress(ConnectionError):
        prefix, descriptors, _, _ = socket.recv_fds(connection, PREFIX, 3)
        size, text = int.from_bytes(prefix, "big"), b""
        while len(text) < size and (more := connection.recv(size - len(text))):
            text += more
        if text and len(text) == size:
            return ForkRequest.parse(text), list(descriptors)
    return None


def threads() -> set[str]:
    """Names of the threads of this process, but for the first."""
    others = (each for each in Path("/proc/self/task").iterdir() if int(each.name) != os.getpid())
    return {(each / "comm").read_text().strip() for each in others}


def _enter(request: ForkRequest, descriptors: list[int]) -> None:
    """Take over descriptors, group, folder and variables of the caller."""
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    with suppress(OSError):  # it has ended, or is in another session
        os.setpgid(0, os.getpgid(request.caller))
    os.chdir(request.folder)
    os.environb.clear()
    os.environb.update(request.variables)


def script_of(words: Sequence[str]) -> list[str] | None:
    """Return script and arguments, of a worker after Ray's set-up. None for what needs a Python of its own."""
    words = [word for word in words if word != "-u"]
    if not words[0].endswith(FORKED):
        return None
    if not words[0].endswith(SET_UP):
        if words[0].endswith(AGENTS):
            os.environ["RAY_RAYLET_PID"] = str(os.getppid())
        return words
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers import setup_worker

    known, script = setup_worker.parser.parse_known_args(words[1:])
    context = RuntimeEnvContext.deserialize(known.serialized_runtime_env_context or "{}")
    if known.language != "PYTHON" or vars(context) != vars(RuntimeEnvContext(env_vars=context.env_vars)):
        return None
    update_envs(context.env_vars)
    return list(script)


def main(address: str, *modules: str) -> None:
    """Serve. In a forked process, run what was asked for."""
    for name in modules:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    server = PythonServer(address)
    os.write(1, b"+")
    request = server.serve()
    if request is None:
        return
    script = script_of(request.words)
    if script is None:
        os.execv(sys.executable, [sys.executable, *request.words])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as of `-u`
    sys.argv = script
    sys.path[0] = str(Path(script[0]).parent)
    runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
