"""Folder of a run or a sweep.

The attempts of a run decide which process trains (`forebay.training.runs.attempts`). The folder of a sweep is held by
one process: on storage of this machine, including a mounted share, by a lock in the folder that ends with its process.
On other storage only Ray refuses a second start, within one cluster.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, replace
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


def run_folder(storage: str, name: str) -> RunFolder:
    """Create or find the folder of the run `name`.

    It is not locked: the run's attempts decide who trains. Raises `InvalidOption` if the folder cannot be created or
    written.
    """
    path = below(resolve(storage).uri, name)
    location = resolve(path)
    if location.fs.get_file_info(location.path).type == FileType.File:
        raise InvalidOption(
            f"name={name!r} names {path}, which is a file; a run keeps its files in a folder. Give the run another "
            "name, or another storage.",
            name=name,
        )
    if location.is_local:
        try:
            Path(location.path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(path, name, error) from error
    return RunFolder(name=name, path=path)


def acquire_run_folder(storage: str, name: str) -> RunFolder:
    """Acquire the folder of the sweep `name`.

    Creates it if it is missing. Locked where storage has locks. Raises `InvalidOption` if that sweep is under way, or
    if the folder cannot be created or written.
    """
    folder = run_folder(storage, name)
    location = resolve(folder.path)
    if not location.is_local:
        return folder
    try:
        return replace(folder, lock=_lock(location, name))
    except OSError as error:
        if error.errno in NO_LOCKS:
            log.warning("%s does not support locks (%s): run %r on one machine at a time.", folder.path, error, name)
            return folder
        raise _unusable(folder.path, name, error) from error


def _unusable(path: str, name: str, error: OSError) -> InvalidOption:
    return InvalidOption(
        f"the folder {path} of run {name!r} cannot be written ({error}). Give the run another name or storage.",
        name=name,
    )


def acquire_new_run_folder(storage: str, title: str) -> RunFolder:
    """Acquire the folder of a sweep without a name.

    `new_run_folder` names it.
    """
    return acquire_run_folder(storage, new_run_folder(storage, title).name)


def new_run_folder(storage: str, title: str) -> RunFolder:
    """Create the folder of a run without a name.

    Its name is `title`, or `title-2` and so on if that exists. The folder is created at once, because two jobs that
    start in the same second must not get the same name. A bucket has no folders to create: there the first save
    decides.
    """
    location = resolve(storage)
    name, number = title, 2
    while not _is_new(location, name):
        name, number = f"{title}-{number}", number + 1
    return run_folder(storage, name)


def _is_new(storage: Location, name: str) -> bool:
    if not storage.is_local:
        return bool(storage.fs.get_file_info(f"{storage.path}/{name}").type == FileType.NotFound)
    try:
        Path(storage.path, name).mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _lock(location: Location, name: str) -> FileLock:
    lock = wait_lock(Path(location.path) / LOCK_NAME, WAIT_S)
    if lock is None:
        raise UnderWay(
            f"a run named {name!r} is under way in {location.uri}. Wait for its end, or give this one another name.",
            name=name,
        )
    return lock
