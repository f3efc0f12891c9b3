"""A lease on a folder, for one writer at a time.

On a local disk it is a file lock, which ends with its process. An object store has no locks, and those of NFS with
`nolock` reach no other machine: there the lease is a file that its holder renews. It keeps two writers apart, except
within the second in which both begin, so callers must stay correct with two of them.

Conditional creation (`forebay.storage.exclusive`) decides exactly who is first, and is what runs are claimed with. It
does not serve here: Azure and most stores of fsspec have none, others need a package of their own, and a preparation
must work on all of them. Besides, a lease has to wait for its holder and to survive the holder's end.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import WriteFailed
from forebay.runtime.foreign_code import begin
from forebay.storage.atomic import find_small, write_atomically
from forebay.storage.file_lock import NO_LOCKS, FileLock, try_lock
from forebay.storage.filesystem import Location, below, resolve
from forebay.storage.private_folder import mount_of

LEASE_NAME = "_lease"
"""Name of the file in the folder. Hidden from listings of data."""
_LOCK_POLL_S = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Times of a lease in an object store, in seconds.

    The holder renews every `renew_s`. Others take the lease when it was not renewed for `expires_s`. A new holder waits
    `settle_s` before it reads back whether another one took the lease at the same moment.
    """

    renew_s: float = 5.0
    expires_s: float = 30.0
    settle_s: float = 1.0


class WriterLease:
    """Lease that is held. Created by `hold_lease`."""

    def __init__(self, is_held: Callable[[], bool]) -> None:
        self._is_held = is_held

    def check(self) -> None:
        """Raise `WriteFailed` if another process took the lease.

        It does if this one did not renew it in time.
        """
        if not self._is_held():
            raise WriteFailed(
                "Another process took over this preparation, because this one was silent for too long. Run it again: "
                "it then reads what the other one wrote."
            )


@contextmanager
def hold_lease(folder: str, on_wait: Callable[[str], None], times: LeaseTimes | None = None) -> Iterator[WriterLease]:
    """Hold the lease on `folder` in the block.

    Waits for a holder without limit.

    Args:
        folder: A path or URI. Created if it is missing.
        on_wait: Called once with a description of the holder, if there is one to wait for.
        times: Times for object stores.

    Raises `OSError` if the folder cannot be written.
    """
    location = resolve(folder)
    location.fs.create_dir(location.path, recursive=True)
    if location.is_local and not ((mount := mount_of(location.path)) and mount.has_own_locks):
        try:
            lock = _wait_local(Path(location.path) / LEASE_NAME, on_wait)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        else:
            try:
                yield WriterLease(lambda: True)
            finally:
                lock.remove(Path(location.path) / LEASE_NAME)
            return
    renewal = _Renewal(resolve(below(location.uri, LEASE_NAME)), times or LeaseTimes())
    renewal.acquire(on_wait)
    try:
        yield WriterLease(lambda: not renewal.is_lost)
    finally:
        renewal.release()


def _wait_local(path: Path, on_wait: Callable[[str], None]) -> FileLock:
    is_waiting = False
    while (lock := try_lock(path)) is None:
        if not is_waiting:
            is_waiting = True
            with suppress(OSError):
                on_wait(path.read_text(errors="replace") or "another process")
        time.sleep(_LOCK_POLL_S)
    with suppress(OSError):  # a full disk: the text is for people only
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, _own_name().encode(), 0)
    return lock


class _Renewal:
    """The lease file of an object store, and its renewing thread."""

    def __init__(self, file: Location, times: LeaseTimes) -> None:
        self._file = file
        self._times = times
        self._token = secrets.token_hex(8)
        self._renewals = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="forebay-lease", daemon=True)
        self.is_lost = False

    def acquire(self, on_wait: Callable[[str], None]) -> None:
        seen, seen_at, is_waiting = "", 0.0, False
        while True:
            asked_at = time.monotonic()
            found = self._read()
            if found != seen:
                # By this machine's own clock: clocks of two machines differ.
                seen, seen_at = found, time.monotonic()
            # Up to the question: this process may have been suspended since, while the holder renewed.
            if found and asked_at - seen_at < self._times.expires_s:
                if not is_waiting:
                    is_waiting = True
                    on_wait(found.partition(" ")[2])
                time.sleep(min(self._times.renew_s, self._times.expires_s / 4))
                continue
            self._write()
            time.sleep(self._times.settle_s)
            if self._read().startswith(self._token):
                begin(self._thread)
                return

    def release(self) -> None:
        self._stop.set()
        if self._thread.is_alive():  # none began, if there was no room for one
            self._thread.join()
        with suppress(OSError):
            # Another one may have it since the last renewal, if this process was suspended.
            if self._read().startswith(self._token):
                self._file.fs.delete_file(self._file.path)

    def _renew(self) -> None:
        while not self._stop.wait(self._times.renew_s):
            try:
                if not self._read().startswith(self._token):
                    self.is_lost = True
                    return
                self._write()
            except OSError as error:
                log.warning("The lease %s could not be renewed: %s", self._file.uri, error)

    def _write(self) -> None:
        self._renewals += 1
        write_atomically(self._file.uri, f"{self._token}-{self._renewals} {_own_name()}".encode())

    def _read(self) -> str:
        return (find_small(self._file) or b"").decode(errors="replace")


def _own_name() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
