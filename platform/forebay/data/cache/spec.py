"""Options of a node's cache.

Directory, disk quota, and share of the machine for building blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forebay.data.cache.builders.data_workers import DEFAULT_WORKERS, CoreShare, DataWorkers, NumReads
from forebay.data.cache.disk.directory import local_folder
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.errors import InvalidOption

_REMOTE_REQUESTS = 64
_NOTHING_FITS_BYTES = 1
"""A cache that stores nothing still has a directory, for the locks of builders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Options of a cache on a node's own disk.

    The node that uses it opens it.

    Attributes:
        path: Directory. It may begin with `~`. Parquet footers lie beside it, in `PATH-footers`: at most 256 MiB.
        quota_bytes: Limit of everything below `path`. 0 stores nothing: blocks come from other nodes or the source.
        min_free_bytes: Bytes of the disk that stay free.
        core_share: Share of the node's cores (at least one core) for decoding and transforming, at low priority, for
            all jobs of the node together. "auto": 0.4, and on a machine with GPUs all cores but two for each GPU. From
            two cores on they are worker processes, where a function of the user can be pickled; else threads.
        num_reads: Number of row groups that are read at once, for all jobs of the node together. "auto" chooses 4 to
            128, from 2 on for local files, at most 1 GiB of blocks: as many as fill the line to storage, or keep the
            cores busy. With `data_nodes`, "auto" is 8 for each node.
        data_nodes: Other nodes of the Ray cluster that read, decode and transform for this one: "cpu_only" for all
            nodes without GPUs, or the name of a custom resource that the nodes have. They use all of their cores, at
            low priority, and store nothing. None for no other node. Without Ray it has no effect.

    >>> CacheSpec(path="/ssd/forebay", quota_bytes=10 << 30).core_share
    'auto'
    """

    path: str = "~/.cache/forebay"
    quota_bytes: int = 50 << 30
    min_free_bytes: int = 2 << 30
    core_share: CoreShare = DEFAULT_WORKERS.core_share
    num_reads: NumReads = DEFAULT_WORKERS.num_reads
    data_nodes: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_reads", self.data_workers.num_reads)
        if self.data_nodes is not None and not (isinstance(self.data_nodes, str) and self.data_nodes):
            raise InvalidOption(
                f'data_nodes={self.data_nodes!r}: give "cpu_only", the name of a custom resource of Ray, or None.',
                data_nodes=self.data_nodes,
            )

    @property
    def data_workers(self) -> DataWorkers:
        """Limits of the data workers."""
        return DataWorkers(core_share=self.core_share, num_reads=self.num_reads)

    @property
    def requests(self) -> DataWorkers:
        """Limits of a node's requests to data workers.

        Data workers of any node.
        """
        if self.data_nodes is None:
            return self.data_workers
        return replace(self.data_workers, num_reads=max(self.data_workers.read_bounds.start, _REMOTE_REQUESTS))

    @property
    def directory(self) -> str:
        """Absolute path on this node."""
        return str(local_folder(self.path))

    def open(self) -> DiskCache:
        """Open the cache in this process.

        Raises `CacheUnusable` if the directory cannot be used.
        """
        quota_bytes = self.quota_bytes or _NOTHING_FITS_BYTES
        return DiskCache(self.directory, quota_bytes=quota_bytes, min_free_bytes=self.min_free_bytes)
