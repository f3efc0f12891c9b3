"""Index of the cache, in SQLite.

Its transactions span all processes.

Nothing that the file holds is unpickled, or names another file. Why SQLite by itself, and a connection for each
transaction: docs/adr/0110-index-by-sqlite.md.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import TypeVar

from forebay.data.cache.disk.accounts import SCHEMA, DamagedRow, IndexTables
from forebay.errors import CacheUnusable
from forebay.storage.file_lock import FileLock, wait_lock

T = TypeVar("T")

_NAME = "accounts.db"
_EARLIER_NAMES = ("cache.db", "index.db")  # what earlier revisions left
_BUSY_S = 60
_WAITS_S = 0.0005, 0.002
"""Bounds of a wait for another transaction, drawn at random. One takes about 1 ms.

SQLite itself waits up to 100 ms each time: the last of 14 processes that began at once had its first block after 19 to
136 ms, and with these waits after 6 to 24.
"""
_SETTINGS = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA mmap_size = 0",
    # A power cut may lose rows. They are rebuilt from the directory after the next boot (ADR 0010).
    "PRAGMA synchronous = OFF",
    # A rollback journal is empty after each transaction. A write-ahead log grows to 4 MB first.
    "PRAGMA journal_mode = TRUNCATE",
)
_jitter = random.SystemRandom()  # the numbers of `random` are the user's, and equal in each run
_GUARD = threading.RLock()
# A connection must not cross fork(): in mid-transaction the child would roll back the parent's changes. So connections
# exist only inside a transaction, and a fork waits for the transaction to end.
os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_GUARD.release)


class IndexFull(Exception):
    """The disk has no room for the index to change."""


class Index:
    """Index in `folder`, shared by all processes that open it.

    `is_made`: another process has made its tables.
    """

    def __init__(self, folder: Path, lock: Path, *, is_made: bool = False) -> None:
        self.file = folder / _NAME
        self._lock = lock
        self._ready = is_made

    def transact(self, work: Callable[[IndexTables], T]) -> T:
        """Run `work` in a transaction and return its result.

        If it raises, its changes are undone.

        Replaces a removed or damaged index by an empty one, and calls `work` again. Raises `IndexFull` if the disk is
        full. Raises `CacheUnusable` if another process holds the index for 60 s, or SQLite cannot use it.
        """
        with _GUARD:
            for _ in range(2):
                found = _inode(self.file)
                try:
                    return self._attempt(work)
                # sqlite3 cannot even make its own error of a damaged name in the file: found by the fuzz.
                except (sqlite3.DatabaseError, UnicodeDecodeError, DamagedRow) as error:
                    problem = error
                self._recover(problem, found)
        raise self._unusable(problem)

    def _attempt(self, work: Callable[[IndexTables], T]) -> T:
        if not self._ready:
            self._create()
        with closing(self._connect()) as connection:
            self._begin(connection)
            with ExitStack() as undo:
                undo.callback(_roll_back, connection)
                result = work(IndexTables(connection))
                connection.execute("COMMIT")
                undo.pop_all()
            return result

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction, once no other process is in one."""
        give_up = time.monotonic() + _BUSY_S
        connection.execute("PRAGMA busy_timeout = 0").close()
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                if time.monotonic() >= give_up:
                    raise self._unusable(error) from error
            time.sleep(_jitter.uniform(*_WAITS_S))
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * _BUSY_S)}").close()  # a commit waits for readers

    def _create(self) -> None:
        """Create the tables in a new file.

        Raises `DamagedRow` if the file holds anything else.
        """
        lock = self._wait()
        if lock is None:
            raise self._unusable(TimeoutError("another process is opening it"))
        with lock, closing(self._connect()) as connection:
            found = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")]
            if not found:
                connection.execute("BEGIN")
                for table in SCHEMA:
                    connection.execute(table)
                connection.execute("COMMIT")
            elif found != [table.encode() for table in SCHEMA]:
                raise DamagedRow(f"a table, view or trigger of another program: {found!r:.200}")
            for left in _EARLIER_NAMES:
                self.file.with_name(left).unlink(missing_ok=True)
                self.file.with_name(f"{left}-journal").unlink(missing_ok=True)
        self._ready = True

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=_BUSY_S, isolation_level=None)
        # sqlite3 has an error of its own, which looks like one of the disk, for text that is not UTF-8.
        connection.text_factory = bytes
        with ExitStack() as undo:
            undo.callback(connection.close)
            for setting in _SETTINGS:
                connection.execute(setting).close()
            undo.pop_all()
        return connection

    def _wait(self) -> FileLock | None:
        try:
            return wait_lock(self._lock, _BUSY_S)
        except OSError as error:
            raise self._unusable(error) from error

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
                self.file.with_name(f"{_NAME}-journal").unlink(missing_ok=True)

    def _unusable(self, problem: object) -> CacheUnusable:
        if isinstance(problem, TimeoutError) or "locked" in str(problem):
            problem = f"{problem} (tried for {_BUSY_S} s)"
            remedy = "End the process that holds it, or remove the file: the index is rebuilt from the blocks."
        else:
            remedy = (
                "Let this process open more files (ulimit -n) and write into this folder, name another directory, or "
                "set cache=None to train without one."
            )
        return CacheUnusable(f"index of the cache, {self.file}: {problem}. {remedy}", path=str(self.file))


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite has ended it after some errors, such as a full disk
        connection.execute("ROLLBACK")


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return 0
