"""Where a node keeps its blocks, and how much of the disk they may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.cache.disk import DiskCache
from forebay.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """A cache directory on a node's own disk, as data: it is opened on the node that uses it.

    `path` may begin with `~`. `quota_bytes` bounds everything below `path`; `min_free_bytes` of the disk stay free.
    `num_data_workers` threads read and transform row groups, for all jobs of the node together.

    >>> CacheSpec(path="/ssd/forebay", quota_bytes=10 << 30).num_data_workers
    2
    """

    path: str = "~/.cache/forebay"
    quota_bytes: int = 50 << 30
    min_free_bytes: int = 2 << 30
    num_data_workers: int = 2

    def __post_init__(self) -> None:
        if self.num_data_workers < 1:
            raise InvalidOption(
                f"num_data_workers={self.num_data_workers}, but somebody must read the row groups. Set 1 or more.",
                num_data_workers=self.num_data_workers,
            )

    @property
    def directory(self) -> str:
        """The absolute path on this node."""
        return str(Path(self.path).expanduser().absolute())

    def open(self) -> DiskCache:
        """The cache in this process. Raises `CacheUnusable` if the directory cannot be used."""
        return DiskCache(self.directory, quota_bytes=self.quota_bytes, min_free_bytes=self.min_free_bytes)
