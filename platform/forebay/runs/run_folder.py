"""Folder of a run, held by one process: two runs in one folder would delete each other's checkpoints.

On storage of this machine, including a mounted share, a lock in the folder enforces this. The lock ends with its
process. Other storage has no locks: there only the Ray driver refuses a second start, within one cluster.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass
from pathlib import Path

from pyarrow.fs import FileType

from forebay.errors import InvalidOption, UnderWay
from forebay.storage.file_lock import FileLock, wait_lock
from forebay.storage.filesystem import Location, below, resolve

LOCK_NAME = ".running"
# Long enough for another process to look up a finished run.
WAIT_S = 1.0
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Name and folder of a run, held until `release`."""

    name: str
    path: str
    lock: FileLock | None = None

    def release(self) -> None:
        """Release the name for other processes."""
        if self.lock is not None and self.lock.fd >= 0:
            # Removed while it is held: a process that opened it meanwhile finds it missing, and tries again.
            (Path(self.path) / LOCK_NAME).unlink(missing_ok=True)
            self.lock.release()


def acquire_run_folder(storage: str, name: str) -> RunFolder:
    """Acquire the folder of the run `name`, and create it if it is missing.

    Raises `InvalidOption` if that run is under way, or if the folder cannot be created or written.
    """
    path = below(resolve(storage).uri, name)
    place = resolve(path)
    if place.fs.get_file_info(place.path).type == FileType.File:
        raise InvalidOption(
            f"name={name!r} names {path}, which is a file; a run keeps its files in a folder. Give the run another "
            "name, or another storage.",
            name=name,
        )
    if not place.is_local:
        return RunFolder(name=name, path=path)
    try:
        Path(place.path).mkdir(parents=True, exist_ok=True)
        return RunFolder(name=name, path=path, lock=_lock(place, name))
    except OSError as error:
        if error.errno in NO_LOCKS:
            log.warning("%s does not support locks (%s): run %r from one place at a time.", path, error, name)
            return RunFolder(name=name, path=path)
        raise InvalidOption(
            f"the folder {path} of run {name!r} cannot be written ({error}). Give the run another name or storage.",
            name=name,
        ) from error


def acquire_new_run_folder(storage: str, title: str) -> RunFolder:
    """Acquire the folder of a run without a name: `title`, or `title-2`, ... if that exists.

    The folder is created at once, because two jobs that start in the same second must not get the same name. A bucket
    has no folders to create: there the first save decides.
    """
    place = resolve(storage)
    name, number = title, 2
    while not _is_new(place, name):
        name, number = f"{title}-{number}", number + 1
    return acquire_run_folder(storage, name)


def _is_new(storage: Location, name: str) -> bool:
    if not storage.is_local:
        return bool(storage.fs.get_file_info(f"{storage.path}/{name}").type == FileType.NotFound)
    try:
        Path(storage.path, name).mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _lock(place: Location, name: str) -> FileLock:
    lock = wait_lock(Path(place.path) / LOCK_NAME, WAIT_S)
    if lock is None:
        raise UnderWay(
            f"a run named {name!r} is under way in {place.uri}. Wait for its end, or give this one another name.",
            name=name,
        )
    return lock
