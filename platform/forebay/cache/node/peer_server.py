"""What a node answers to others who ask for its blocks: from its disk and at once, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from forebay.cache.block_key import KEY
from forebay.cache.cpu_share import keep_off_trainer
from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.node.bloom_filter import BloomFilter
from forebay.cache.single_flight import SingleFlightPool
from forebay.errors import CacheUnusable
from forebay.metrics import Counters
from forebay.transform.block import Block

T = TypeVar("T")

_NUM_THREADS = 4
_MOST_OPEN = 32
_SUMMARY = ""


class PeerServer(Generic[T]):
    """Looks blocks up for other nodes. It never makes one, so that no two nodes can wait for each other.

    Args:
        cache: The node's disk, as it is at the moment of the question.
        send: What becomes of a block in the thread that looked it up; it may take the time to copy it.
    """

    def __init__(self, cache: Callable[[], DiskCache], send: Callable[[Block], T]) -> None:
        self._cache = cache
        self._send = send
        self._counting = threading.Lock()
        self._num_open = 0
        self._summaries: SingleFlightPool[str, BloomFilter] = SingleFlightPool(
            self._summary, num_threads=1, on_start=keep_off_trainer
        )
        self._blocks: SingleFlightPool[str, T | None] = SingleFlightPool(
            self._block, num_threads=_NUM_THREADS, on_start=keep_off_trainer
        )

    def summary(self) -> Future[BloomFilter]:
        """Which blocks there are."""
        return self._summaries.submit(_SUMMARY)

    def block(self, key: str) -> Future[T | None]:
        """What was sent of the block `key`, or None: it is not here, or too many others are being looked up."""
        with self._counting:
            is_busy = self._num_open >= _MOST_OPEN
            self._num_open += not is_busy
        if is_busy:
            turned_away: Future[T | None] = Future()
            turned_away.set_result(None)
            return turned_away
        future = self._blocks.submit(key)
        future.add_done_callback(self._done)
        return future

    def close(self, timeout_s: float) -> None:
        """Stop the threads."""
        self._summaries.close(timeout_s)
        self._blocks.close(timeout_s)

    def _done(self, _: Future[T | None]) -> None:
        with self._counting:
            self._num_open -= 1

    def _summary(self, _: str) -> BloomFilter:
        return BloomFilter.of(self._cache().keys())

    def _block(self, key: str) -> T | None:
        # The question comes from another process, and the key becomes a file's name.
        if not KEY.fullmatch(key):
            return None
        try:
            block = self._cache().load(key, Counters())
        except CacheUnusable:
            return None
        return self._send(block) if block else None
