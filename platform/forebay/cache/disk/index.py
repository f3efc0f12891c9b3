"""Index of the cache: JSON rows in SQLite, through `diskcache`, changed in transactions that span all processes.

The only file that imports `diskcache`. It reads back only plain bytes: diskcache's own `Disk` classes unpickle their
values, and no release has fixed that (CVE-2025-69872).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import diskcache
from diskcache.core import DBNAME, MODE_RAW

from forebay.errors import CacheUnusable
from forebay.storage.file_lock import FileLock, wait_lock

T = TypeVar("T")

_BUSY_S = 60  # diskcache's own default for FanoutCache is 10 ms, after which writes are silently lost
_GUARD = threading.RLock()
# A connection must not cross fork(): in mid-transaction the child would roll back the parent's changes. So connections
# exist only inside a transaction, and a fork waits for the transaction to end.
os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_GUARD.release)


class IndexFull(Exception):
    """The disk has no room for the index to change."""


class DamagedRow(Exception):
    """A row that Forebay did not write: invalid, or readable only by unpickling or from another file."""


class _PlainDisk(diskcache.JSONDisk):  # type: ignore[misc]
    def get(self, key: Any, raw: Any) -> Any:
        if not raw:
            raise DamagedRow("a name that is not plain text")
        return _text(super().get, key, raw)

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
        if mode != MODE_RAW or filename is not None:
            raise DamagedRow("a value that is not plain text")
        return _text(super().fetch, mode, filename, value, read)

    def remove(self, file_path: Any) -> None:
        """Remove nothing: no row of Forebay has a file, and a foreign row could name any file."""


def _text(decode: Callable[..., Any], *found: object) -> Any:
    try:
        return decode(*found)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise DamagedRow(f"a row that cannot be decoded: {error}") from error


class IndexTable:
    """Rows of the index within one transaction. Names are text, values are JSON."""

    def __init__(self, cache: diskcache.Cache) -> None:
        self._cache = cache

    def get(self, name: str) -> Any:
        return self._cache.get(name)

    def set(self, name: str, value: object) -> None:
        written = self._cache.set(name, value)
        assert written, "diskcache refused a write inside a transaction"

    def delete(self, name: str) -> None:
        self._cache.delete(name)

    def names(self) -> Iterator[str]:
        for name in self._cache.iterkeys():
            if not isinstance(name, str):
                raise DamagedRow(f"a row named {name!r:.100}")
            yield name


class Index:
    """Index in `folder`, shared by all processes that open it."""

    def __init__(self, folder: Path, lock: Path) -> None:
        self.file = folder / DBNAME
        self._lock = lock
        self._ready = False

    def transact(self, work: Callable[[IndexTable], T]) -> T:
        """Run `work` in a transaction and return its result. If it raises, its changes are undone.

        Replaces a removed or damaged index by an empty one, and calls `work` again. Raises `IndexFull` if the disk is
        full. Raises `CacheUnusable` if another process holds the index for 60 s, or SQLite cannot use it.
        """
        with _GUARD:
            for _ in range(2):
                found = _inode(self.file)
                try:
                    return self._attempt(work)
                except (sqlite3.DatabaseError, DamagedRow) as error:
                    problem = error
                self._recover(problem, found)
        raise self._unusable(problem)

    def _attempt(self, work: Callable[[IndexTable], T]) -> T:
        cache = self._open()
        try:
            with cache.transact():
                return work(IndexTable(cache))
        except diskcache.Timeout as error:
            # diskcache reports every failure to begin a transaction as a timeout. The context holds the real error.
            if isinstance(error.__context__, sqlite3.Error) and "locked" not in str(error.__context__):
                raise error.__context__ from None
            raise self._unusable(error) from error
        finally:
            cache.close()

    def _open(self) -> diskcache.Cache:
        # The tables are created once. Connections last no longer than a transaction.
        if not self._ready:
            lock = self._wait()
            if lock is None:
                raise self._unusable(TimeoutError("another process is opening it"))
            with lock:
                self._cache = self._make()
                self._cache.close()
            self._ready = True
        return self._cache

    def _wait(self) -> FileLock | None:
        try:
            return wait_lock(self._lock, _BUSY_S)
        except OSError as error:
            raise self._unusable(error) from error

    def _make(self) -> diskcache.Cache:
        try:
            return diskcache.Cache(
                str(self.file.parent),
                disk=_PlainDisk,
                timeout=_BUSY_S,
                eviction_policy="none",
                cull_limit=0,
                disk_min_file_size=1 << 30,
                disk_compress_level=1,  # set here, so that the setting in the index does not count
                # A rollback journal is empty after each transaction. A write-ahead log grows to 4 MB first.
                sqlite_journal_mode="truncate",
                # A power cut may lose rows. They are rebuilt from the directory after the next boot (ADR 0010).
                sqlite_synchronous=0,
                sqlite_mmap_size=0,
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DamagedRow(f"a setting that diskcache does not know: {error}") from error

    def _recover(self, problem: Exception, found: int) -> None:
        """Prepare the next attempt: remove a damaged index."""
        if "disk is full" in str(problem):
            raise IndexFull from problem
        self._ready = False
        if isinstance(problem, sqlite3.OperationalError):
            return
        with self._wait() or nullcontext():
            # Removes only the damaged file: another process may have replaced it already.
            if _inode(self.file) == found:
                self.file.unlink(missing_ok=True)
                self.file.with_name(f"{DBNAME}-journal").unlink(missing_ok=True)

    def _unusable(self, problem: Exception) -> CacheUnusable:
        return CacheUnusable(
            f"index of the cache, {self.file}: {problem or 'locked by another process'} (tried for {_BUSY_S} s). "
            "End the process that holds it, or remove the file: the index is rebuilt from the blocks.",
            path=str(self.file),
        )


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return 0
