"""Where a loader gets its blocks from: this process, or the cache actor of its node."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.local_source import LocalSource
from forebay.metrics import Counters
from forebay.transform.block import Block
from forebay.transform.dataset import Dataset


class BlockSource(Protocol):
    """Blocks of one (manifest, transform), by index into the manifest.

    Laws: requests are started in the order they are made; two open requests for one index share the work; an error of
    the work is raised by the future; a block stays valid for as long as it is referenced, also after `close`.
    """

    def request(self, index: int) -> Future[Block]:
        """Ask for the transformed row group `index`; waits for no storage, and maps at once what is in the cache."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what is pending (`CancelledError`) and return within `timeout_s`, even if a read is stuck."""
        ...


class SourceProvider(Protocol):
    """Something other than this process that serves blocks: the cache actor of a node."""

    def source(self, dataset: Dataset, tally: Counters) -> BlockSource: ...


def open_source(cache: DiskCache | SourceProvider | None, dataset: Dataset, tally: Counters) -> BlockSource:
    """The blocks of `manifest` under `transform`, through `cache`.

    A `DiskCache`, or None for no cache, is served by threads of this process, within `cache.cores.DEFAULT_WORKERS`;
    anything else by itself. Counters go to `tally`.
    """
    if cache is None or isinstance(cache, DiskCache):
        return LocalSource(dataset, cache, tally=tally)
    return cache.source(dataset, tally)
