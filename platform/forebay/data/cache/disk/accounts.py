"""Accounts of a cache directory, and the tables that hold them.

Bytes of datasets, writers and quarantined files.

SQLite checks no types, and a file may be damaged. So every value is checked as it is read, and names that become names
of files must have the form of a Forebay file. An invalid value means a damaged index, which is rebuilt.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.data.cache.block_key import KEY
from forebay.data.cache.disk.directory import PART, QUARANTINED

_PAGE_BYTES = 4096
MOST_USERS = 32
"""Number of leases of a directory that are listed by name, with a small file each. Further leases are not listed."""
INDEX_BYTES = (48 + 1 + MOST_USERS) * _PAGE_BYTES
"""Bytes of an empty index with its journal, the folders of the cache, and the files of its users."""
_PER_BLOCK_BYTES = 1024
"""Limit of a block's row in the index and the journal, and its folder entry."""

SCHEMA = (
    "CREATE TABLE boots (id TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID",
    """CREATE TABLE datasets (
        name TEXT PRIMARY KEY NOT NULL,
        blocks INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        created_at REAL NOT NULL,
        hits INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE blocks (
        key TEXT PRIMARY KEY NOT NULL,
        dataset TEXT NOT NULL,
        bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE reservations (
        name TEXT PRIMARY KEY NOT NULL,
        key TEXT NOT NULL,
        dataset TEXT NOT NULL,
        bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE quarantined (
        name TEXT PRIMARY KEY NOT NULL,
        bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
)


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


class DamagedRow(Exception):
    """A row or a table that Forebay did not write."""


class IndexTables:
    """Rows of the index within one transaction.

    `datasets` has the number and bytes of the blocks of each dataset, so that a reservation need not add up all
    blocks: with 100,000 of them that takes 33 ms, in which no other process can store a block.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def boot(self) -> str | None:
        """Boot in which the accounts were last rebuilt.

        None in an empty index.
        """
        found = self._connection.execute("SELECT id FROM boots").fetchone()
        return None if found is None else _text(found[0])

    def set_boot(self, boot: str) -> None:
        self._connection.execute("DELETE FROM boots")
        self._connection.execute("INSERT INTO boots VALUES (?)", (boot,))

    def usage(self) -> CacheUsage:
        """Everything that counts against the quota. Raises `DamagedRow`."""
        return CacheUsage(datasets=self.datasets(), reservations=self.reservations(), quarantined=self.quarantined())

    def datasets(self) -> dict[str, DatasetUse]:
        """Usage by dataset. Raises `DamagedRow`."""
        rows = self._connection.execute("SELECT name, blocks, bytes, created_at, hits FROM datasets")
        return {
            _text(name): DatasetUse(
                dataset=_text(name),
                blocks=_count(blocks),
                bytes=_count(nbytes),
                created_at=_unix_s(created_at),
                hits=_count(hits),
            )
            for name, blocks, nbytes, created_at, hits in rows
        }

    def reservations(self) -> dict[str, Reservation]:
        """Reservations by the name of the part file. Raises `DamagedRow`."""
        rows = self._connection.execute("SELECT name, key, dataset, bytes FROM reservations")
        return {
            _text(name, PART): Reservation(key=_text(key, KEY), dataset=_text(dataset), bytes=_count(nbytes))
            for name, key, dataset, nbytes in rows
        }

    def quarantined(self) -> dict[str, int]:
        """Bytes by name of the quarantined file. Raises `DamagedRow`."""
        rows = self._connection.execute("SELECT name, bytes FROM quarantined")
        return {_text(name, QUARANTINED): _count(nbytes) for name, nbytes in rows}

    def block_datasets(self) -> dict[str, str]:
        """Dataset of each block, by key. Raises `DamagedRow`."""
        return {
            _text(key, KEY): _text(name) for key, name in self._connection.execute("SELECT key, dataset FROM blocks")
        }

    def reserve(self, name: str, reservation: Reservation) -> None:
        """Reserve the bytes of the part file `name`.

        Replaces an earlier reservation.
        """
        values = (name, reservation.key, reservation.dataset, reservation.bytes)
        self._connection.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?)", values)

    def release(self, name: str) -> None:
        """Delete the reservation of the part file `name`.

        Does nothing without one.
        """
        self._connection.execute("DELETE FROM reservations WHERE name = ?", (name,))

    def add_block(self, block: Reservation, now: float) -> None:
        """Add a block that has no row.

        `now` (Unix s) is the age of a dataset without blocks.
        """
        nbytes = whole_pages(block.bytes)
        self._connection.execute("INSERT INTO blocks VALUES (?, ?, ?)", (block.key, block.dataset, nbytes))
        self._connection.execute(
            "INSERT INTO datasets VALUES (?, 1, ?, ?, 0) "
            "ON CONFLICT (name) DO UPDATE SET blocks = blocks + 1, bytes = bytes + excluded.bytes",
            (block.dataset, nbytes, now),
        )

    def remove_block(self, key: str) -> None:
        """Remove the row of a block, if any.

        Raises `DamagedRow`.
        """
        found = self._connection.execute("SELECT dataset, bytes FROM blocks WHERE key = ?", (key,)).fetchone()
        if found is None:
            return
        dataset, nbytes = _text(found[0]), _count(found[1])
        changed = self._connection.execute(
            "UPDATE datasets SET blocks = blocks - 1, bytes = bytes - :bytes "
            "WHERE name = :name AND blocks > 0 AND bytes >= :bytes",
            {"name": dataset, "bytes": nbytes},
        )
        if changed.rowcount != 1:
            raise DamagedRow(f"the accounts do not know block {key} of {dataset!r:.100}")
        self._connection.execute("DELETE FROM datasets WHERE name = ? AND blocks = 0", (dataset,))
        self._connection.execute("DELETE FROM blocks WHERE key = ?", (key,))

    def remove_dataset(self, dataset: str) -> tuple[list[str], int]:
        """Remove the rows of a dataset.

        Returns the keys of its blocks and their bytes. Raises `DamagedRow`.
        """
        rows = self._connection.execute("SELECT key FROM blocks WHERE dataset = ?", (dataset,))
        keys, use = [_text(key, KEY) for (key,) in rows], self.datasets()[dataset]
        if len(keys) != use.blocks:
            raise DamagedRow(f"{dataset!r:.100} has {len(keys)} rows for {use.blocks} blocks")
        self._connection.execute("DELETE FROM blocks WHERE dataset = ?", (dataset,))
        self._connection.execute("DELETE FROM datasets WHERE name = ?", (dataset,))
        return keys, use.bytes

    def replace_blocks(self, blocks: Iterable[Reservation], created_at: Mapping[str, float]) -> None:
        """Replace the rows of all blocks.

        Sums up their datasets. Datasets that stay keep their hits.
        """
        hits = {name: use.hits for name, use in self.datasets().items()}
        self._connection.execute("DELETE FROM blocks")
        self._connection.execute("DELETE FROM datasets")
        rows = [(each.key, each.dataset, whole_pages(each.bytes)) for each in blocks]
        self._connection.executemany("INSERT INTO blocks VALUES (?, ?, ?)", rows)
        sums = self._connection.execute("SELECT dataset, count(*), sum(bytes) FROM blocks GROUP BY dataset").fetchall()
        for found, num_blocks, nbytes in sums:
            name = _text(found)
            use = (name, num_blocks, nbytes, created_at[name], hits.get(name, 0))
            self._connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?)", use)

    def add_hits(self, hits: Mapping[str, int]) -> None:
        """Add `hits` by dataset. Ignores datasets without blocks."""
        rows = [(number, name) for name, number in hits.items()]
        self._connection.executemany("UPDATE datasets SET hits = hits + ? WHERE name = ?", rows)

    def quarantine(self, name: str, nbytes: int) -> None:
        """Add a quarantined file."""
        self._connection.execute("INSERT OR REPLACE INTO quarantined VALUES (?, ?)", (name, nbytes))

    def remove_quarantined(self, name: str) -> None:
        """Remove a quarantined file, if it has a row."""
        self._connection.execute("DELETE FROM quarantined WHERE name = ?", (name,))


def _text(found: object, form: re.Pattern[str] | None = None) -> str:
    if not isinstance(found, bytes):
        raise DamagedRow(f"a {type(found).__name__} where text is expected")
    try:
        text = found.decode()
    except UnicodeDecodeError as error:
        raise DamagedRow("text that is not UTF-8") from error
    if form and not form.fullmatch(text):
        raise DamagedRow(f"{text!r:.100} does not have the form {form.pattern}")
    return text


def _count(found: object) -> int:
    if not (isinstance(found, int) and 0 <= found < 1 << 62):
        raise DamagedRow(f"{found!r:.100} where a whole number is expected")
    return found


def _unix_s(found: object) -> float:
    if not (isinstance(found, float) and 0 <= found < 1e12):
        raise DamagedRow(f"{found!r:.100} where a time is expected")
    return found
