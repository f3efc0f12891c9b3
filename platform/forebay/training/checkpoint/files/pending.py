"""Lock of a checkpoint folder while a checkpoint is in memory.

Its holder may be killed: then the process that has the memory too holds the lock until it has written.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from forebay.storage.file_lock import FileLock, try_lock

WRITING = ".writing"
SAY_S = 5.0
MOST_S = 600.0
"""A disk that takes longer is not waited for: the checkpoint before is restored."""
_POLL_S = 0.02

log = logging.getLogger(__name__)


def wait_until_written(folder: str | os.PathLike[str]) -> None:
    """Wait until no process has an unwritten checkpoint of `folder`.

    The folder is on this machine. What a killed process left unwritten, and why, is a warning.
    """
    path, began, said = Path(folder) / WRITING, time.monotonic(), False
    while (lock := _locked(path)) is None:
        waited_s = time.monotonic() - began
        if waited_s > MOST_S:
            log.warning("A checkpoint has been written to %s for %.0f s. It is not waited for.", folder, waited_s)
            return
        if waited_s > SAY_S and not said:
            log.warning("Waiting for a checkpoint that another process writes to %s.", folder)
            said = True
        time.sleep(_POLL_S)
    with lock:
        if lock.fd >= 0 and (note := os.pread(lock.fd, 4096, 0)):
            log.warning("%s", note.decode(errors="replace"))
            os.ftruncate(lock.fd, 0)


def _locked(path: Path) -> FileLock | None:
    """Lock of a file that may be missing. None if taken."""
    with suppress(OSError):  # missing, or a file system without locks: then no process writes from memory
        return try_lock(path, flags=0)
    return FileLock(-1)
