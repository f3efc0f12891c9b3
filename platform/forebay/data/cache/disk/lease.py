"""Leases on datasets.

A lock that ends with its process, and a small file that names the holder.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forebay.data.cache.disk.accounts import MOST_USERS
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.storage.file_lock import FileLock, try_lock, wait_lock

_LEASE_WAIT_S = 5.0
_NOTE_BYTES = 4096
_NAME_CHARS = 80
_WRITE_EVERY_S = 5.0
"""Interval of writing hits into the lease's file. A crash loses at most these, and no hit waits for the index."""

_user: ContextVar[str | None] = ContextVar("cache_user", default=None)
_live: weakref.WeakSet[CacheLease] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUser:
    """Process that uses `dataset`.

    The run or program `name`, since `since` (Unix s), with `hits` blocks so far.
    """

    dataset: str
    name: str
    pid: int
    host: str
    since: float
    hits: int = 0


@contextmanager
def named_user(name: str) -> Iterator[None]:
    """List leases of this thread under `name`.

    Instead of the program's name, within the block.
    """
    token = _user.set(name)
    try:
        yield
    finally:
        _user.reset(token)


class CacheLease:
    """Lease that protects `dataset` from eviction.

    Until `release`, or until this process ends. Created by `take_lease`.

    It belongs to the process that took it. The copy in a forked child holds nothing.
    """

    def __init__(self, user: CacheUser, lock: FileLock, note: FileLock | None, path: Path) -> None:
        self._lock, self._note, self._path = lock, note, path
        self._guard = threading.Lock()
        self._user = user
        self._written_at = time.monotonic()
        self._hits = 0
        _live.add(self)

    @property
    def dataset(self) -> str:
        return self._user.dataset

    @property
    def is_held(self) -> bool:
        return self._lock.fd >= 0

    def count_hit(self) -> None:
        """Count a cache hit."""
        with self._guard:
            self._hits += 1
            if time.monotonic() - self._written_at >= _WRITE_EVERY_S:
                self._write()

    def release(self) -> None:
        """Release the lease. Idempotent.

        Does not wait: its hits stay in the file until they are collected.
        """
        with self._guard:
            if not self.is_held:
                return
            if self._note:
                if self._hits:
                    self._write()
                else:
                    _remove(self._path)
                self._note.release()
            self._lock.release()

    def reset_in_child(self) -> None:
        """Make the guard anew in a forked child. Another thread may have held the old one."""
        self._guard = threading.Lock()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._note:
            with suppress(OSError):  # a full disk must not end a run because of a counter
                _write_note(self._note, replace(self._user, hits=self._hits))


def take_lease(directory: CacheDirectory, dataset: str, *, listed: bool) -> CacheLease | None:
    """Take a lease on `dataset`.

    With a file in users/ if `listed`.

    Returns None if an eviction of the dataset takes longer than 5 s. Raises `OSError` if the directory is missing.
    """
    lock = wait_lock(directory.use_lock(dataset), _LEASE_WAIT_S, shared=True)
    if lock is None:
        return None
    user = CacheUser(
        dataset=dataset, name=_own_name(), pid=os.getpid(), host=socket.gethostname(), since=round(time.time(), 3)
    )
    path = directory.users / f"{secrets.token_hex(8)}.json"
    with ExitStack() as undo:
        undo.callback(lock.release)
        note = _new_note(directory, path, user) if listed else None
        undo.pop_all()
    return CacheLease(user, lock, note, path)


def live_users(directory: CacheDirectory) -> list[CacheUser]:
    """Lease holders in living processes, oldest first.

    Invalid files are left out.
    """
    users = []
    for path in directory.user_files():
        with suppress(OSError):
            ended = try_lock(path, flags=os.O_NOFOLLOW)
            if ended:
                ended.release()
            elif user := _read_note(path):
                users.append(user)
    return sorted(users, key=lambda user: (user.since, user.pid))


@contextmanager
def ended_users(directory: CacheDirectory) -> Iterator[list[CacheUser]]:
    """Holders of ended leases.

    Removes their files at the end of the block, unless it raises.
    """
    ended: list[tuple[Path, FileLock]] = []
    try:
        for path in directory.user_files():
            with suppress(OSError):
                if lock := try_lock(path, flags=os.O_NOFOLLOW):
                    ended.append((path, lock))
        yield [user for path, _ in ended if (user := _read_note(path))]
        for path, _ in ended:
            _remove(path)
    finally:
        for _, lock in ended:
            lock.release()


def _new_note(directory: CacheDirectory, path: Path, user: CacheUser) -> FileLock | None:
    """Locked file of `user`.

    None if the directory has its maximum of them, or the disk is full.
    """
    if len(directory.user_files()) >= MOST_USERS:
        return None
    note = None
    try:
        # None also if a sweep saw the new file before it was locked, and removed it as a leftover.
        note = try_lock(path, flags=os.O_CREAT | os.O_EXCL)
        if note:
            _write_note(note, user)
    except OSError:
        _remove(path)
        if note:
            note.release()
        return None
    return note


def _remove(path: Path) -> None:
    with suppress(OSError):  # the disk may have become read-only; the next sweep removes the file
        path.unlink()


def _write_note(note: FileLock, user: CacheUser) -> None:
    text = json.dumps(asdict(user)).encode()
    # In place, because the lock is on this file. The text only grows, so no bytes of an earlier one remain.
    if len(text) <= _NOTE_BYTES:
        os.pwrite(note.fd, text, 0)


def _read_note(path: Path) -> CacheUser | None:
    """Read the holder, made printable.

    Returns None for anything that `_write_note` did not write.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
            text = file.read(_NOTE_BYTES + 1)
        facts = json.loads(text) if len(text) <= _NOTE_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(facts, dict):
        return None
    dataset, name, host = (_shown(facts.get(part)) for part in ("dataset", "name", "host"))
    pid, hits, since = (_number(facts.get(part)) for part in ("pid", "hits", "since"))
    if dataset is None or name is None or host is None or pid is None or hits is None or since is None:
        return None
    return CacheUser(dataset=dataset, name=name, pid=int(pid), host=host, since=since, hits=int(hits))


def _shown(text: object) -> str | None:
    """`text` without terminal control characters."""
    return "".join(char if char.isprintable() else "?" for char in text) if isinstance(text, str) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < 1 << 53 else None


def _own_name() -> str:
    program = Path(sys.argv[0]).name if sys.argv else ""
    return (_user.get() or (program if program not in ("", "-c", "-m") else "python"))[:_NAME_CHARS]


def _reset_all_in_child() -> None:
    for lease in list(_live):
        lease.reset_in_child()


os.register_at_fork(after_in_child=_reset_all_in_child)
