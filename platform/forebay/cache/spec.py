"""Where a node keeps its blocks, how much of the disk they may take, and how much of the machine making them may."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.cache.cpu_share import DEFAULT_WORKERS, DataWorkers
from forebay.cache.disk.disk_cache import DiskCache

_NOTHING_FITS_BYTES = 1
"""A cache that stores nothing still has a directory, for the locks of those who make blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """A cache directory on a node's own disk, as data: it is opened on the node that uses it.

    `path` may begin with `~`. `quota_bytes` bounds everything below `path`, 0 stores nothing (blocks come from other
    nodes that hold them, or the source); `min_free_bytes` of the disk stay free.
    For all jobs of the node together, up to `num_reads` row groups are read at once, and decoded and transformed on
    `core_share` of its cores (at least one), at low priority; the rest is the trainer's.

    >>> CacheSpec(path="/ssd/forebay", quota_bytes=10 << 30).core_share
    0.4
    """

    path: str = "~/.cache/forebay"
    quota_bytes: int = 50 << 30
    min_free_bytes: int = 2 << 30
    core_share: float = DEFAULT_WORKERS.core_share
    num_reads: int = DEFAULT_WORKERS.num_reads

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_reads", self.data_workers.num_reads)

    @property
    def data_workers(self) -> DataWorkers:
        """Who makes the blocks."""
        return DataWorkers(core_share=self.core_share, num_reads=self.num_reads)

    @property
    def directory(self) -> str:
        """The absolute path on this node."""
        return str(Path(self.path).expanduser().absolute())

    def open(self) -> DiskCache:
        """The cache in this process. Raises `CacheUnusable` if the directory cannot be used."""
        quota_bytes = self.quota_bytes or _NOTHING_FITS_BYTES
        return DiskCache(self.directory, quota_bytes=quota_bytes, min_free_bytes=self.min_free_bytes)
