"""Footers on a node's disk, shared by its processes.

diskcache keeps them in one SQLite file. By itself it would store Python objects as pickles and large values as files
that a row names. Here plain bytes are the only type of a row, with a checksum that covers the row's name: a row of any
other kind is refused, and nothing that the file holds can run code or name another file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash
from diskcache_community import UNKNOWN, Cache, Disk, Timeout
from diskcache_community.core import MODE_RAW

from forebay.data.manifest.manifest import CONTENT_HASH
from forebay.storage.private_folder import unsafe_folder, unsafe_path
from forebay.storage.versions import FoundFile, settled_version

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""Some 30,000 files of 20 columns and 2 row groups."""
_MIN_FREE_BYTES = 1 << 30
_SUFFIX = "-footers"
_FILE = "cache.db"
_FORMAT = "1"
_DIGEST_BYTES = 8
_BUSY_S = 2
_BATCH = 500
_LARGEST_PART = 16
"""A row, or a batch of rows, may fill 1 / 16 of the store."""
_KEPT_S = 3600.0
"""A full store evicts nothing younger: a scan of more files than fit would otherwise evict its own footers."""
_EVICTED_AT_ONCE = 64
_PAGE_BYTES = 4096
_SETTINGS: Mapping[str, Any] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "sqlite_mmap_size": 0,
    # Rows have checksums, and a file that a power cut damaged is removed.
    "sqlite_synchronous": 0,
    # A rollback journal is empty after each transaction, and works on a network file system.
    "sqlite_journal_mode": "truncate",
}

default_cache_folder = "~/.cache/forebay"
"""Folder of a node's cache where none is given, as in `CacheSpec`."""


class BadRow(ValueError):
    """A row that `FooterStore` did not write."""


_ERRORS = (Timeout, sqlite3.Error, BadRow, OSError, ValueError)


class _RawDisk(Disk):
    """Serializer for rows of bytes under names of text.

    Refuses all others before anything of them is decoded.
    """

    def put(self, key: Any) -> Any:
        if not isinstance(key, str):
            raise BadRow(f"a name of type {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> Any:
        if not raw or not isinstance(key, str):
            raise BadRow("a name that is not text")
        return key

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> Any:  # noqa: ARG002
        if not isinstance(value, bytes) or read:
            raise BadRow(f"a value of type {type(value).__name__}")
        return 0, MODE_RAW, None, memoryview(value)

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> Any:
        if mode != MODE_RAW or filename is not None or not isinstance(value, bytes) or read:
            raise BadRow(f"a value of mode {mode}, not bytes")
        return value

    def remove(self, file_path: Any) -> None:
        """Remove nothing: no row has a file."""


class FooterStore:
    """Bytes by name on disk, at most `most_bytes`.

    For any number of threads and processes of one user.

    The folder lies beside the folder of a node's cache, outside of its quota. It is created for this user alone, at the
    first use. A folder that belongs to another user, or that other users can write or replace, is not used.

    Every method does without the store where it fails: a file that is locked for 2 s, full or damaged. Then footers are
    read from their files.
    """

    def __init__(self, cache_folder: str | os.PathLike[str] | None = None, most_bytes: int = MOST_BYTES) -> None:
        cache = Path(cache_folder or default_cache_folder)
        self._folder = cache.with_name(f"{cache.name or 'forebay'}{_SUFFIX}")
        self._most_bytes = most_bytes

    @property
    def _cache(self) -> Cache | None:
        return _open(str(self._folder))

    def get(self, name: str) -> bytes | None:
        """Return the value of a row.

        None for a missing row, and for a damaged one.
        """
        if (cache := self._cache) is None:
            return None
        try:
            return _checked(name, cache.get(_key(name)))
        except BadRow:
            self.forget(name)
        except _ERRORS as error:
            self._give_up(error)
        return None

    def put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Store rows. Leaves out what does not fit."""
        for batch in _batches(rows, self._most_bytes // _LARGEST_PART):
            if (cache := self._cache) is None:
                return
            try:
                if not self._make_room(cache, sum(len(value) + _PAGE_BYTES for _, value in batch)):
                    return
                with cache.transact():
                    for name, value in batch:
                        cache.set(_key(name), _digest(name, value) + value)
            except _ERRORS as error:
                self._give_up(error)

    def forget(self, name: str) -> None:
        """Remove the row `name`, if there is one."""
        if (cache := self._cache) is not None:
            try:
                cache.delete(_key(name))
            except _ERRORS as error:
                self._give_up(error)

    def close(self) -> None:
        """Close this thread's connection. The next call opens another one."""
        if (cache := self._cache) is not None:
            cache.close()

    def _make_room(self, cache: Cache, num_bytes: int) -> bool:
        """Evict the oldest rows until `num_bytes` fit.

        Returns whether they do.
        """
        if shutil.disk_usage(cache.directory).free < _MIN_FREE_BYTES:
            return False
        while cache.volume() + num_bytes > self._most_bytes:
            with cache.transact():
                oldest = list(islice(cache, _EVICTED_AT_ONCE))
                for key in oldest:
                    if time.time() - (cache.get(key, store_time=True)[1] or 0.0) < _KEPT_S:
                        return False
                    cache.delete(key)
            if not oldest:
                return False
        return True

    def _give_up(self, error: Exception) -> None:
        """Remove a damaged file.

        The next call begins a new one.
        """
        folder = self._folder.expanduser().absolute()
        if isinstance(error, BadRow) or type(error) is sqlite3.DatabaseError:
            log.warning("The footers in %s are damaged (%s) and were removed.", folder, error)
            _remove(folder)
            _open.cache_clear()
        else:
            log.debug("The footers in %s cannot be used now: %s", folder, error)


@lru_cache(maxsize=16)
def _open(name: str) -> Cache | None:
    """Open the file in a folder.

    None if the folder is unsafe or cannot be written.
    """
    try:
        folder = Path(name).expanduser().absolute()
        if not (problem := unsafe_path(folder)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = unsafe_path(folder) or _problem_of(folder)
        if not problem:
            return _open_file(folder)
    except (OSError, RuntimeError, sqlite3.Error, Timeout) as error:  # RuntimeError: no home folder
        problem = f"cannot be used ({error})"
    log.warning("Footers are not kept: the folder %s %s. Every scan reads them again.", name, problem)
    return None


def kept_version(file: FoundFile) -> str:
    """Return the version of a file for the store.

    Empty: the store keeps nothing about it.
    """
    return file.etag if file.etag.startswith(CONTENT_HASH) else settled_version(file)


def facts_name(file: FoundFile, version: str) -> str:
    """Return the row name of a listed file's facts.

    The listing has no etag.
    """
    return f"facts\n{file.uri!r}\n{file.size}\n{version}"


def footer_name(file: FoundFile, version: str) -> str:
    """Return the name of the footer of a file."""
    return f"footer\n{file.uri!r}\n{file.size}\n{version}\n{file.etag}"


def _problem_of(folder: Path) -> str:
    """Reason not to trust a folder, or an empty text."""
    if problem := unsafe_folder(folder.lstat()):
        return problem
    folder.chmod(0o700)
    for entry in os.scandir(folder):
        found = entry.stat(follow_symlinks=False)
        if entry.name.startswith(_FILE) and (not entry.is_file(follow_symlinks=False) or found.st_uid != os.geteuid()):
            return f"holds {entry.name}, which does not belong to this user or is a link"
    return ""


def _open_file(folder: Path) -> Cache:
    """Open the SQLite file.

    A damaged one is replaced. Each thread connects at its first use, and not before.
    """
    try:
        cache = Cache(str(folder), timeout=_BUSY_S, disk=_RawDisk, **_SETTINGS)
    except (sqlite3.DatabaseError, BadRow, TypeError, ValueError, KeyError) as error:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise
        log.warning("The footers in %s are damaged (%s) and were removed.", folder, error)
        _remove(folder)
        cache = Cache(str(folder), timeout=_BUSY_S, disk=_RawDisk, **_SETTINGS)
    cache.close()
    return cache


def _remove(folder: Path) -> None:
    for name in (_FILE, f"{_FILE}-journal", f"{_FILE}-wal", f"{_FILE}-shm"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _batches(rows: Iterable[tuple[str, bytes]], most_bytes: int) -> Iterator[list[tuple[str, bytes]]]:
    """Cut rows into batches.

    A batch has at most `_BATCH` rows and `most_bytes`. Larger rows are left out.
    """
    batch: list[tuple[str, bytes]] = []
    num_bytes = 0
    for name, value in rows:
        if len(value) > most_bytes:
            continue
        if batch and (len(batch) == _BATCH or num_bytes + len(value) > most_bytes):
            yield batch
            batch, num_bytes = [], 0
        batch.append((name, value))
        num_bytes += len(value)
    if batch:
        yield batch


def _encoded(name: str) -> bytes:
    return f"{_FORMAT}\n{name}".encode(errors="surrogateescape")


def _key(name: str) -> str:
    return hashlib.blake2b(_encoded(name), digest_size=20).hexdigest()


def _digest(name: str, value: bytes) -> bytes:
    return xxhash.xxh3_64_digest(value, seed=xxhash.xxh3_64_intdigest(_encoded(name)))


def _checked(name: str, row: bytes | None) -> bytes | None:
    """Return the value of a row without its checksum.

    Raises `BadRow`.
    """
    if row is None:
        return None
    value = row[_DIGEST_BYTES:]
    if _digest(name, value) != row[:_DIGEST_BYTES]:
        raise BadRow("a wrong checksum")
    return value
