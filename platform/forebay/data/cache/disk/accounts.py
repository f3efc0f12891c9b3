"""Accounts of a cache directory. Pure.

Bytes of datasets, writers and quarantined files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_PAGE_BYTES = 4096
MOST_USERS = 32
"""Number of leases of a directory that are listed by name, with a small file each. Further leases are not listed."""
INDEX_BYTES = (48 + 1 + MOST_USERS) * _PAGE_BYTES
"""Bytes of an empty index with its journal, the folders of the cache, and the files of its users."""
_PER_BLOCK_BYTES = 1024
"""Limit of a block's row in the index and the journal, and its folder entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetUse:
    """Usage of a cache by one dataset.

    `blocks` files of `bytes` in total, the first built at `created_at` (Unix s).

    `hits` counts requests that found their block in the cache.
    """

    dataset: str
    blocks: int
    bytes: int
    created_at: float
    hits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Bytes of one block.

    Reserved while it is written, and recorded afterwards.
    """

    key: str
    dataset: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsage:
    """Usage that counts against the quota.

    Finished blocks by dataset, reservations of writers, quarantined files.
    """

    datasets: Mapping[str, DatasetUse] = field(default_factory=dict)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    quarantined: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        return sum(use.blocks for use in self.datasets.values())

    @property
    def reserved_bytes(self) -> int:
        return sum(charge(reservation.bytes) for reservation in self.reservations.values())

    @property
    def used_bytes(self) -> int:
        """Upper bound of the disk space of the directory.

        Index and folders included.
        """
        blocks = sum(use.bytes for use in self.datasets.values()) + _PER_BLOCK_BYTES * self.num_blocks
        return INDEX_BYTES + blocks + self.reserved_bytes + sum(map(charge, self.quarantined.values()))


def charge(nbytes: int) -> int:
    """Disk space of a file, including its index entry."""
    return whole_pages(nbytes) + _PER_BLOCK_BYTES


def smallest_quota(nbytes: int) -> int:
    """Smallest quota under which a first block of `nbytes` fits."""
    return INDEX_BYTES + charge(nbytes)


def whole_pages(nbytes: int) -> int:
    """Disk space of a file of `nbytes`.

    As `du` counts it: disks allocate whole pages.
    """
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
