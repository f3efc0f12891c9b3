"""File locks (`flock`) between threads and processes.

A process that ends releases its locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system without locks."""
_FIRST_POLL_S = 0.001
_LAST_POLL_S = 0.02

_live: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """Lock that is held on a file.

    Created by `try_lock` or `wait_lock`. It belongs to the process that took it: the copy in a forked child holds
    nothing.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _live.add(self)

    def release(self) -> None:
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        # Closing is not enough: a child that is being forked still has a copy, which would keep the lock.
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove the locked file, and release it."""
        if self.fd >= 0:
            # Removed while it is held: a process that opened it meanwhile finds it missing, and tries again.
            with suppress(OSError):
                path.unlink(missing_ok=True)
            self.release()

    def close_in_child(self) -> None:
        """Close the copy of the descriptor in a forked child.

        The parent keeps the lock.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def try_lock(path: Path, *, shared: bool = False, flags: int = os.O_CREAT) -> FileLock | None:
    """Lock `path` without waiting.

    Returns None if another holder has it.

    Returns None also if the file was removed or replaced meanwhile. Raises `OSError` if it cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    lock = FileLock(fd)
    with ExitStack() as undo:
        undo.callback(lock.release)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.stat()):
                undo.pop_all()
                return lock
    return None


def wait_lock(
    path: Path,
    deadline_s: float,
    *,
    shared: bool = False,
    cancelled: threading.Event | None = None,
) -> FileLock | None:
    """Lock `path`, waiting at most `deadline_s` seconds.

    Returns None after that, or once `cancelled` is set.
    """
    give_up = time.monotonic() + deadline_s
    stop = cancelled or threading.Event()
    poll_s = _FIRST_POLL_S
    while (lock := try_lock(path, shared=shared)) is None:
        if time.monotonic() >= give_up or stop.wait(poll_s):
            return None
        poll_s = min(2 * poll_s, _LAST_POLL_S)
    return lock


def _close_all_in_child() -> None:
    for lock in list(_live):
        lock.close_in_child()


# A child's copy of a descriptor would keep the lock while the child lives, even after a crash of the parent.
os.register_at_fork(after_in_child=_close_all_in_child)
