"""Interface of block sources for a loader.

Threads of this process serve them, or the cache actor of its node.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import accumulate
from typing import Protocol, runtime_checkable

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.local_source import LocalSource
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.runtime.metrics import Counters


class BlockSource(Protocol):
    """Blocks of one dataset, by index into its manifest.

    Laws:
    - Requests start in the order in which they are made.
    - Two open requests for one index share the work.
    - The future raises the errors of the work.
    - A block stays valid as long as it is referenced, also after `close`.
    """

    def request(self, index: int) -> Future[Block]:
        """Request the transformed row group `index`.

        Does not wait for storage. A cached block is mapped at once.
        """
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel pending requests (`CancelledError`).

        Returns within `timeout_s` seconds, even if a read is stuck.
        """
        ...


@runtime_checkable
class MappedBlocks(Protocol):
    """Part of a `BlockSource` that maps cached blocks."""

    def peek(self, index: int, counters: Counters) -> Block | None:
        """Map block `index` at once.

        Counts to `counters`. None if that takes a read, or is not known.
        """
        ...


class SourceProvider(Protocol):
    """Factory of block sources.

    Such as the cache actor of a node.
    """

    def source(self, dataset: Dataset, counters: Counters) -> BlockSource: ...


def open_source(cache: DiskCache | SourceProvider | None, dataset: Dataset, counters: Counters) -> BlockSource:
    """Open the blocks of `dataset` through `cache`.

    Counters go to `counters`.

    Threads of this process serve a `DiskCache`, or None for no cache, within the default limits of `CacheSpec`. A
    `SourceProvider` serves its blocks itself.
    """
    if cache is None or isinstance(cache, DiskCache):
        return LocalSource(dataset, cache, counters=counters)
    return cache.source(dataset, counters)


class JoinedSource:
    """`BlockSource` of several datasets.

    Blocks are numbered one dataset after the other.

    Args:
        sources: Source of each dataset.
        num_blocks: Number of blocks of each dataset.
    """

    def __init__(self, sources: Sequence[BlockSource], num_blocks: Sequence[int]) -> None:
        self._sources = sources
        self._first_blocks = [0, *accumulate(num_blocks)]

    def request(self, index: int) -> Future[Block]:
        number = bisect_right(self._first_blocks, index) - 1
        return self._sources[number].request(index - self._first_blocks[number])

    def peek(self, index: int, counters: Counters) -> Block | None:
        """Map block `index`, without a read.

        Counts to `counters`. None if its source cannot do so.
        """
        number = bisect_right(self._first_blocks, index) - 1
        source = self._sources[number]
        return source.peek(index - self._first_blocks[number], counters) if isinstance(source, MappedBlocks) else None

    def close(self, timeout_s: float = 5.0) -> None:
        give_up = time.monotonic() + timeout_s
        for source in self._sources:
            source.close(max(give_up - time.monotonic(), 0.0))
