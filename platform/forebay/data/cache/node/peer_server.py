"""Answers to other nodes that request blocks: from this node's disk, without waiting for a build."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from forebay.data.cache.block_key import KEY
from forebay.data.cache.builders.data_workers import lower_thread_priority
from forebay.data.cache.builders.single_flight import SingleFlightPool
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.transform.block import Block
from forebay.errors import CacheUnusable
from forebay.runtime.metrics import Counters

T = TypeVar("T")

_NUM_THREADS = 4
_MOST_OPEN = 32
_ONLY_TASK = ""


class PeerServer(Generic[T]):
    """Looks up blocks for other nodes. It never builds one, so no two nodes can wait for each other.

    Args:
        cache: Returns the node's current disk cache.
        send: Called with the block in the thread that looked it up; it may copy the block.
    """

    def __init__(self, cache: Callable[[], DiskCache], send: Callable[[Block], T]) -> None:
        self._cache = cache
        self._send = send
        self._counting = threading.Lock()
        self._num_open = 0
        self._filter_workers: SingleFlightPool[str, BloomFilter] = SingleFlightPool(
            self._build_filter, num_threads=1, on_start=lower_thread_priority
        )
        self._blocks: SingleFlightPool[str, T | None] = SingleFlightPool(
            self._block, num_threads=_NUM_THREADS, on_start=lower_thread_priority
        )

    def bloom_filter(self) -> Future[BloomFilter]:
        """Build the Bloom filter of the blocks on disk."""
        return self._filter_workers.submit(_ONLY_TASK)

    def block(self, key: str) -> Future[T | None]:
        """Look up and send the block `key`. None if it is not on disk, or if 32 lookups are open already."""
        with self._counting:
            is_busy = self._num_open >= _MOST_OPEN
            self._num_open += not is_busy
        if is_busy:
            rejected: Future[T | None] = Future()
            rejected.set_result(None)
            return rejected
        future = self._blocks.submit(key)
        future.add_done_callback(self._done)
        return future

    def close(self, timeout_s: float) -> None:
        """Stop the threads."""
        self._filter_workers.close(timeout_s)
        self._blocks.close(timeout_s)

    def _done(self, _: Future[T | None]) -> None:
        with self._counting:
            self._num_open -= 1

    def _build_filter(self, _: str) -> BloomFilter:
        return BloomFilter.of(self._cache().keys())

    def _block(self, key: str) -> T | None:
        # The request comes from another process, and the key becomes a file name.
        if not KEY.fullmatch(key):
            return None
        try:
            block = self._cache().load(key, Counters())
        except CacheUnusable:
            return None
        return self._send(block) if block else None
