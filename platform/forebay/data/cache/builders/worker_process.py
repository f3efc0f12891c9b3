"""Process of data workers: builds blocks for the process that owns it."""

from __future__ import annotations

import math
import os
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal, TypeAlias

import pyarrow as pa

from forebay.data.cache.block_file import write_block
from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions
from forebay.data.cache.builders.block_pool import CpuShare
from forebay.data.cache.builders.data_workers import lower_thread_priority
from forebay.data.cache.builders.registered_datasets import BuildFailed, RegisteredDatasets
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.parquet import page_kernels
from forebay.data.parquet.footer import FooterCache
from forebay.data.parquet.footer_store import FooterStore
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.errors import ForebayError
from forebay.runtime.foreign_code import begin
from forebay.runtime.fork_server import receive_descriptor, send_descriptor
from forebay.runtime.metrics import Counters
from forebay.storage.retry import ReadPolicy

_IDLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Options of a `DiskCache`, which the worker opens."""

    path: str
    quota_bytes: int
    min_free_bytes: int

    @classmethod
    def of(cls, cache: DiskCache | None) -> CacheOptions | None:
        """Options of `cache`."""
        if cache is None:
            return None
        return cls(path=str(cache.path), quota_bytes=cache.quota_bytes, min_free_bytes=cache.min_free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Request: build blocks of a dataset from now on, under the id `name`.

    `payload` is the packed dataset. Without a `cache` blocks are sent in memory.
    """

    name: str
    payload: bytes
    cache: CacheOptions | None
    policy: ReadPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """Reply: the block is in the cache, in a file of this state."""

    sums: Mapping[str, float]
    core_s: float
    state: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """Reply: the block is in a file in memory, whose descriptor follows."""

    sums: Mapping[str, float]
    core_s: float


Build: TypeAlias = tuple[str, int]
"""Request: the id of the dataset, and the index of the block."""
Reply: TypeAlias = StoredFile | MemoryFile | BuildFailed | Literal["unknown", "raised"]
"""Raised: what is no error of Forebay. The owner builds the block, and raises the same."""


def preload() -> None:
    """Load what every worker needs, in the process that forks them."""
    page_kernels.load()
    # Arrow imports pandas, where it is installed, at its first array for NumPy: 0.2 s in each worker.
    pa.array([0]).to_numpy(zero_copy_only=False)


def main(descriptor: int) -> None:
    """Serve the owner until it closes its end of the socket `descriptor`.

    It sends its process id, and then "line" with the descriptor of one socket for each build that may run at once, or
    the seconds to stay without work.
    """
    owner = Connection(descriptor)
    # Also where a thread is inside a read that never returns, or native code that holds the GIL for long.
    with suppress(EOFError, OSError):
        worker = _Builds()
        owner.send(os.getpid())
        end_at = math.inf
        while time.monotonic() < end_at or worker.num_busy:
            if not owner.poll(_IDLE_S):
                if not worker.num_busy:  # its allowance ends with the record
                    worker.record_stored()
                continue
            request: Literal["line"] | float = owner.recv()
            if request == "line":
                line = Connection(receive_descriptor(owner))
                begin(threading.Thread(target=worker.serve, args=(line,), name="forebay-data", daemon=True))
            else:
                worker.record_stored()
                end_at = time.monotonic() + request
    worker.record_stored()
    os._exit(0)


class _Builds:
    """Builders of one process, one for each dataset and thread."""

    def __init__(self) -> None:
        self._cores = CpuShare(1)
        self._caches: dict[CacheOptions, DiskCache] = {}
        self._options: dict[str, tuple[DiskCache | None, BuildOptions]] = {}
        self._datasets = RegisteredDatasets(self._make_builder)
        self._registering = threading.Lock()
        self._busy: set[int] = set()

    @property
    def num_busy(self) -> int:
        """Number of threads that build."""
        return len(self._busy)

    def serve(self, line: Connection) -> None:
        """Answer the requests of one thread of the owner."""
        lower_thread_priority()
        with suppress(EOFError, OSError):
            while True:
                request: Registration | Build = line.recv()
                if isinstance(request, Registration):
                    line.send(self._register(request))
                else:
                    self._cores.take_ticket()
                    self._busy.add(line.fileno())
                    try:
                        self._answer(line, *request)
                    finally:
                        self._busy.discard(line.fileno())

    def record_stored(self) -> None:
        """Account for the blocks that were stored since the last call."""
        for cache in list(self._caches.values()):
            with suppress(ForebayError):  # the next open of the cache counts its files
                cache.record_stored()

    def _register(self, request: Registration) -> ForebayError | None:
        try:
            with self._registering:
                if request.name not in self._datasets:
                    opened = self._open(request)
                    self._datasets.register(request.name, request.payload)
                    self._options = {name: each for name, each in self._options.items() if name in self._datasets}
                    self._options[request.name] = opened
        except ForebayError as error:
            return error
        return None

    def _open(self, request: Registration) -> tuple[DiskCache | None, BuildOptions]:
        """Open the cache of a dataset, and make the options that its builders share."""
        options, cache = request.cache, None
        if options is not None and (cache := self._caches.get(options)) is None:
            sizes = {"quota_bytes": options.quota_bytes, "min_free_bytes": options.min_free_bytes}
            self._caches[options] = cache = DiskCache.of_owner(options.path, **sizes)
        footers = FooterCache(FooterStore(cache.path) if cache else None, stores_new=False)
        return cache, BuildOptions(policy=request.policy, footers=footers, cores=self._cores, maps_files=True)

    def _answer(self, line: Connection, name: str, index: int) -> None:
        if (found := self._datasets.builder(name)) is None:
            line.send("unknown")
            return
        builder, counters = found
        before = counters.as_dict()
        with ExitStack() as undo:
            undo.callback(line.send, "raised")  # any other error ends this thread, with its traceback
            try:
                block, core_s, state = builder.read_and_store(index)
            except ForebayError as error:
                undo.pop_all()
                trace = "".join(traceback.format_exception(error))
                line.send(BuildFailed(error=error, trace=trace, sums=counters.since(before)))
                return
            undo.pop_all()
        if state is not None:
            line.send(StoredFile(sums=counters.since(before), core_s=core_s, state=state))
            return
        line.send(MemoryFile(sums=counters.since(before), core_s=core_s))
        self._send_block(line, block)

    def _send_block(self, line: Connection, block: Block) -> None:
        descriptor = os.memfd_create("forebay-block", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            write_block(file, block, "", "")
            file.flush()
            send_descriptor(line, descriptor)

    def _make_builder(self, name: str, dataset: Dataset, counters: Counters) -> BlockBuilder:
        cache, options = self._options[name]
        return BlockBuilder(dataset, cache, counters=counters, options=options)
