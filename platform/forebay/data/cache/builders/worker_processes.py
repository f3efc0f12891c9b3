"""Data workers as processes: blocks are decoded and transformed outside of this one.

Threads share one GIL: on 16 cores, a cold epoch of plain numbers was as fast as on 2. No array crosses a pipe: a worker
writes the block's file, and this process maps it.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
import select
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from forebay.data.cache.block_file import map_descriptor
from forebay.data.cache.builders.block_builder import FromWorker
from forebay.data.cache.builders.data_workers import WORKERS_VARIABLE
from forebay.data.cache.builders.registered_datasets import BuildFailed, pack
from forebay.data.cache.builders.worker_process import CacheOptions, MemoryFile, Registration, Reply, StoredFile
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.dataset import Dataset
from forebay.errors import Cancelled, ReadFailed
from forebay.runtime.fork_server import (
    ForkServer,
    ForkServerLost,
    Program,
    as_socket,
    receive_descriptor,
    send_descriptor,
    socket_pair,
)
from forebay.runtime.metrics import Counters
from forebay.runtime.pickling import NotPicklable
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy

log = logging.getLogger(__name__)

PROGRAM = Program(
    preload="from forebay.data.cache.builders import worker_process; worker_process.preload()",
    main=("forebay.data.cache.builders.worker_process", "main"),
)
_MOST_DEATHS = 3
"""Workers that may die while they build one block."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_START_S = 60.0
_POLL_S = 0.01
KEPT_S = 10.0
"""How long workers stay without a loader. In the first half, the next one uses them: an evaluation, a trial.

Not until they end: one that is ending still takes a request, and never answers.
"""
_MOST_DATASETS = 64
_MOST_STARTING = 64
"""Workers that are asked for at once. A socket takes about 140 requests while the server imports; then `send` waits."""


def prepare() -> None:
    """Start the server that forks the workers. It imports and loads for a second, beside the start of a job."""
    _pool.start_server()


class DataProcesses:
    """Worker processes of one loader, or of one node.

    They are shared by all of this process, start in the background, and end some seconds after the last loader was
    closed, or with this process.

    Args:
        number: Number of processes that may build at once, one block each. With 0 `of` returns None.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._lines: set[Connection] = set()
        self._made: dict[tuple[str, CacheOptions | None], DatasetProcesses] = {}
        self._changing = threading.Lock()
        self.is_closed = False
        if number:
            _pool.join(self)

    def of(
        self, name: str, dataset: Dataset, cache: DiskCache | None, policy: ReadPolicy = DEFAULT_POLICY
    ) -> DatasetProcesses | None:
        """Builds of the dataset `name` into `cache`, or in memory.

        Calls with one name and cache get one object.
        """
        if not self.number:
            return None
        key = name, CacheOptions.of(cache)
        with self._changing:
            while len(self._made) >= _MOST_DATASETS:
                del self._made[next(iter(self._made))]
            return self._made.setdefault(key, DatasetProcesses(self, dataset, key[1], policy))

    def resize(self, number: int) -> None:
        """Use `number` processes from now on."""
        self.number = number
        _pool.leave(self)
        if number:
            _pool.join(self)

    def close(self) -> None:
        """End the builds that are waited for with `Cancelled`."""
        with self._changing:
            self.is_closed = True
            for line in self._lines:
                _shut_down(line)
        _pool.leave(self)

    def begin(self, line: Connection) -> None:
        """Note a line that a thread waits on. Raises `Cancelled` after `close`."""
        with self._changing:
            if self.is_closed:
                raise Cancelled("the data workers were closed")
            self._lines.add(line)

    def end(self, line: Connection) -> None:
        """Note that no thread waits on `line` any more."""
        with self._changing:
            self._lines.discard(line)


_ids = itertools.count()


class DatasetProcesses:
    """Builds of one dataset in worker processes."""

    def __init__(
        self, processes: DataProcesses, dataset: Dataset, cache: CacheOptions | None, policy: ReadPolicy
    ) -> None:
        self._processes, self._dataset, self._cache, self._policy = processes, dataset, cache, policy
        self._name = str(next(_ids))
        self._registration: Registration | None = None
        self._packing = threading.Lock()
        self._is_refused = False

    def build(self, index: int, counters: Counters) -> FromWorker | None:
        """Build block `index` in a worker process.

        None if none is ready, or this process has no descriptor left: the caller builds it. Raises the errors of the
        build, `Cancelled` after `close`, and `ReadFailed` if it ends three workers, or one and no other is ready.
        """
        deaths = 0
        while deaths < _MOST_DEATHS and not self._is_refused:
            # What has ended a worker must not end the trainer: the next try waits for another worker.
            if (worker := self._take(_START_S if deaths else 0.0)) is None:
                break
            try:
                return self._build_in(worker, index, counters)
            except (EOFError, OSError) as error:
                if self._processes.is_closed:
                    raise Cancelled("the data workers were closed") from None
                if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:  # the worker lives on
                    break
                deaths += 1
                _pool.remove(worker)
            finally:
                _pool.put_back(worker)
        if not deaths:
            return None
        row_group, others = self._dataset.manifest[index], "" if deaths == _MOST_DEATHS else ", and no other is ready"
        raise ReadFailed(
            f"{deaths} data worker{'s' if deaths > 1 else ''} ended at row group {row_group.index} of "
            f"{row_group.uri}{others}: out of memory, a crash of native code, or a file that is being cut. Set "
            f"{WORKERS_VARIABLE}=threads to build it in the trainer and look there.",
            uri=row_group.uri,
            row_group=row_group.index,
        )

    def _take(self, wait_s: float) -> _Worker | None:
        give_up = time.monotonic() + wait_s
        while (worker := _pool.take(self._processes.number)) is None and time.monotonic() < give_up and _pool.may_start:
            if self._processes.is_closed:
                raise Cancelled("the data workers were closed")
            time.sleep(_POLL_S)
        return worker

    def _build_in(self, worker: _Worker, index: int, counters: Counters) -> FromWorker | None:
        line = worker.line()
        self._processes.begin(line)
        try:
            if self._name not in worker.known and not self._register(worker, line):
                return None
            line.send((self._name, index))
            reply: Reply = line.recv()
            if reply == "unknown":  # the worker keeps the newest datasets
                worker.known.discard(self._name)
                return None
            if reply == "raised":
                return None
            block = map_descriptor(_received(line)) if isinstance(reply, MemoryFile) else None
        finally:
            self._processes.end(line)
        worker.idle.append(line)
        counters.merge(reply.sums)
        if isinstance(reply, BuildFailed):
            reply.throw()
        return FromWorker(block, reply.core_s, reply.state if isinstance(reply, StoredFile) else None)

    def _register(self, worker: _Worker, line: Connection) -> bool:
        try:
            with self._packing:
                if self._registration is None:
                    payload = pack(self._dataset)
                    self._registration = Registration(
                        name=self._name, payload=payload, cache=self._cache, policy=self._policy
                    )
            line.send(self._registration)
            error = line.recv()
        except NotPicklable as problem:
            error = problem
        if error is not None:
            self._is_refused = True
            log.warning("Threads of this process build the blocks, because worker processes cannot: %s", error)
            return False
        worker.known.add(self._name)
        return True


@dataclass(eq=False, slots=True)
class _Worker:
    """Process of data workers, and its idle lines."""

    control: Connection
    pid: int = 0
    idle: list[Connection] = field(default_factory=list)
    num_busy: int = 0
    known: set[str] = field(default_factory=set)
    sending: threading.Lock = field(default_factory=threading.Lock)
    looks: select.poll = field(default_factory=select.poll)

    def __post_init__(self) -> None:
        self.looks.register(self.control.fileno(), select.POLLIN)

    def is_ready(self) -> bool:
        """Whether the process has started. Raises `OSError` or `EOFError` if it has ended."""
        if not self.looks.poll(0):
            return self.pid != 0
        self.pid = self.control.recv()  # its first and only message
        return True

    def line(self) -> Connection:
        """Connection to a thread of the process, for one build at a time."""
        with suppress(IndexError):
            return self.idle.pop()
        with socket_pair() as (line, theirs), self.sending:
            self.control.send("line")
            send_descriptor(self.control, theirs)
        return line

    def keep(self, idle_s: float) -> None:
        """Tell the process how many seconds to stay without work."""
        with suppress(OSError), self.sending:
            self.control.send(idle_s)

    def close(self) -> None:
        """Close the connections. The process ends."""
        with self.sending:  # a thread that is sending would use a handle that is None
            self.leave()

    def leave(self) -> None:
        """Close the connections in a forked child, where no thread sends."""
        for connection in (self.control, *self.idle):
            with suppress(OSError):
                connection.close()


class _Pool:
    """Worker processes of this process.

    It has no thread: workers are forked by the server and say when they are ready, and idle ones end themselves.
    """

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._users: weakref.WeakSet[DataProcesses] = weakref.WeakSet()
        self._workers: list[_Worker] = []
        self._server = ForkServer(PROGRAM)
        self._num_lost = 0
        self._is_refused = False
        self._kept_until = math.inf

    def join(self, user: DataProcesses) -> None:
        """Start workers for `user`, in the background."""
        with self._changed:
            if not self._users:
                if time.monotonic() > self._kept_until:
                    for worker in [*self._workers]:
                        self._remove(worker)
                self._num_lost, self._is_refused = 0, False
            self._kept_until = math.inf
            self._users.add(user)
            for worker in self._workers:
                worker.keep(math.inf)
            self._start()

    def start_server(self) -> None:
        """Start the server unless it is running."""
        with self._changed, suppress(OSError):  # a loader says so, once it needs workers
            self._server.start()

    def leave(self, user: DataProcesses) -> None:
        """Let the workers end some seconds later, unless there is another user."""
        with self._changed:
            self._users.discard(user)
            self._trim()
            if not self._users:
                self._kept_until = time.monotonic() + KEPT_S / 2
                for worker in self._workers:
                    worker.keep(KEPT_S)

    @property
    def may_start(self) -> bool:
        """Whether a worker is there, or one may still start."""
        return bool(self._workers) or not self._is_refused

    def take(self, number: int) -> _Worker | None:
        """Take the least busy of the first `number` workers. None if none is ready."""
        with self._changed:
            # The first one that is ready, not all: a look at each of 14 took 0.2 ms of a block.
            ready = (each for each in sorted(self._workers[:number], key=_busy) if self._is_ready(each))
            worker = next(ready, None)
            self._start()
            if worker is not None:
                worker.num_busy += 1
            return worker

    def put_back(self, worker: _Worker) -> None:
        """Put back a worker that was taken."""
        with self._changed:
            worker.num_busy -= 1
            if worker in self._workers:
                self._num_lost = 0
            self._trim()

    def remove(self, worker: _Worker) -> None:
        """Remove a worker that has ended. Another one starts."""
        with self._changed:
            self._remove(worker)

    def leave_memory(self) -> None:
        """Close the connections, in a forked child. The workers belong to the parent."""
        for worker in self._workers:
            worker.leave()
        self._server.leave()
        self.__init__()  # type: ignore[misc] # its lock may be held by a thread that does not exist here

    def _is_ready(self, worker: _Worker) -> bool:
        try:
            return worker.is_ready()
        except (EOFError, OSError):
            self._remove(worker)
            return False

    def _remove(self, worker: _Worker) -> None:
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        worker.close()
        # Those that were idle for long ended themselves.
        self._num_lost += worker.num_busy > 0 or worker.pid == 0
        if self._num_lost > 2 * self._wanted + _MOST_DEATHS and not self._is_refused:
            self._is_refused = True
            log.warning("%d data workers have ended. Threads of this process build blocks.", self._num_lost)

    def _trim(self) -> None:
        """End idle workers that no user is large enough for."""
        if not self._users:
            return
        for worker in self._workers[self._wanted :]:
            if not worker.num_busy:
                self._workers.remove(worker)
                worker.close()

    @property
    def _wanted(self) -> int:
        return max((user.number for user in self._users), default=0)

    def _start(self) -> None:
        """Start missing workers."""
        if self._is_refused:
            return
        try:
            while len(self._workers) < self._wanted and self._num_starting() < _MOST_STARTING:
                self._workers.append(_fork(self._server))
        except ForkServerLost:  # the next build starts another one
            self._num_lost += 1
        except OSError as error:
            self._is_refused = True
            log.warning("Threads of this process build the blocks, because worker processes cannot start: %s", error)

    def _num_starting(self) -> int:
        return sum(not each.pid and not self._is_ready(each) for each in [*self._workers])


def _busy(worker: _Worker) -> int:
    return worker.num_busy


def _fork(server: ForkServer) -> _Worker:
    server.start()
    return _Worker(server.post_fork())


def _received(line: Connection) -> int:
    """Descriptor that a worker has sent. Raises `OSError`."""
    try:
        return receive_descriptor(line)
    except RuntimeError as error:  # the message came without it
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error


def _shut_down(line: Connection) -> None:
    """End the wait of a thread for an answer."""
    with suppress(OSError), as_socket(line) as end:
        end.shutdown(socket.SHUT_RDWR)


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.leave_memory)
