"""Folder of a run or a sweep.

The attempts of a run decide which process trains (`forebay.training.runs.attempts`). The folder of a sweep is held by
one process: on storage of this machine, including a mounted share, by a lock in the folder that ends with its process.
On other storage only Ray refuses a second start, within one cluster.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pyarrow.fs import FileType

from forebay.errors import InvalidOption, UnderWay
from forebay.runtime.uris import split_options, with_options
from forebay.storage.atomic import ADVICE, write_failed
from forebay.storage.credentials import redact, redacted
from forebay.storage.file_lock import NO_LOCKS, FileLock, wait_lock
from forebay.storage.filesystem import Location, below, resolve
from forebay.storage.json_file import from_json, read_json_file, write_json_file
from forebay.training.checkpoint.config import FOLDER as CHECKPOINTS

LOCK_NAME = ".running"
# Long enough for another process to look up a finished run.
WAIT_S = 1.0

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Folder of a run, where it is now, with its records.

    All that a run reads and writes is below it: a place that is written in a record is not followed, since the folder
    may have been moved or copied since. The folder of a sweep is held until `release`.
    """

    location: Location
    lock: FileLock | None = None

    @classmethod
    def at(cls, run: str | os.PathLike[str] | RunFolder) -> RunFolder:
        """Folder at a path or URI, or the given `RunFolder`."""
        if isinstance(run, RunFolder):
            return run
        location = resolve(run)
        name, options = split_options(location.uri)
        return cls(location=location._replace(uri=with_options(name.rstrip("/") or "/", options)))

    @classmethod
    def below(cls, storage: str, name: str) -> RunFolder:
        """Folder of the run `name` below `storage`."""
        return cls(location=resolve(below(resolve(storage).uri, name)))

    @property
    def name(self) -> str:
        """Name of the run."""
        return split_options(self.uri)[0].rpartition("/")[2]

    @property
    def uri(self) -> str:
        """Canonical URI, or an absolute path."""
        return self.location.uri

    @property
    def checkpoints(self) -> Location:
        """Folder of its checkpoints."""
        return self.location.child(CHECKPOINTS)

    def read(self, file: str) -> bytes | None:
        """Content of a file, or None.

        Raises `OSError`, and `InvalidOption` if the folder is a file.
        """
        return read_json_file(self.location, file, "run")

    def write(self, file: str, text: str) -> None:
        """Write or replace a file. Raises `OSError`."""
        write_json_file(self.location, file, text)

    def load(self, file: str, build: Callable[[Any], T], version: int) -> T | None:
        """Value of a JSON record, or None without one.

        Raises `InvalidOption` for one that `build` cannot use, or of another version.
        """
        content = self.read(file)
        return None if content is None else from_json(content, build, version=version, owner="run", file_name=file)

    def save(self, file: str, text: str, what: str, advice: str = ADVICE) -> None:
        """Write or replace a JSON record.

        Raises `WriteFailed`, which calls it `what`.
        """
        try:
            self.write(file, text)
        except OSError as error:
            raise write_failed(what, self.uri, error, advice, name=self.name) from redacted(error)

    def set_aside(self, file: str) -> int:
        """Rename a damaged file, so that a new one takes its place.

        Returns how many of this name are set aside. If storage refuses, the file stays until it is written again.
        """
        location, number = self.location.child(file), 1
        while _exists(aside := self.location.child(aside_name(file, number))):
            number += 1
        try:
            location.fs.move(location.path, aside.path)
        except OSError as error:
            log.warning("%s could not be renamed (%s).", location.uri, redact(str(error)))
        return number

    def release(self) -> None:
        """Release the name for other processes."""
        if self.lock is not None:
            self.lock.remove(Path(self.location.path) / LOCK_NAME)


def aside_name(file: str, number: int) -> str:
    """Name of the damaged file number `number`.

    >>> aside_name("timeline.json", 1)
    'timeline.damaged-1.json'
    """
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}.damaged-{number}{dot}{suffix}"


def _exists(location: Location) -> bool:
    return bool(location.fs.get_file_info(location.path).type != FileType.NotFound)


def run_folder(storage: str, name: str) -> RunFolder:
    """Create or find the folder of the run `name`.

    It is not locked: the run's attempts decide who trains. Raises `InvalidOption` if the folder cannot be created or
    written.
    """
    folder = RunFolder.below(storage, name)
    location = folder.location
    if location.fs.get_file_info(location.path).type == FileType.File:
        raise InvalidOption(
            f"name={name!r} names {folder.uri}, which is a file; a run keeps its files in a folder. Give the run "
            "another name, or another storage.",
            name=name,
        )
    if location.is_local:
        try:
            Path(location.path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from error
    return folder


def acquire_run_folder(storage: str, name: str) -> RunFolder:
    """Acquire the folder of the sweep `name`.

    Creates it if it is missing. Locked where storage has locks. Raises `InvalidOption` if that sweep is under way, or
    if the folder cannot be created or written.
    """
    folder = run_folder(storage, name)
    if not folder.location.is_local:
        return folder
    try:
        lock = wait_lock(Path(folder.location.path) / LOCK_NAME, WAIT_S)
    except OSError as error:
        if error.errno in NO_LOCKS:
            log.warning("%s does not support locks (%s): run %r on one machine at a time.", folder.uri, error, name)
            return folder
        raise _unusable(folder, error) from error
    if lock is None:
        raise UnderWay(
            f"a run named {name!r} is under way in {folder.uri}. Wait for its end, or give this one another name.",
            name=name,
        )
    return replace(folder, lock=lock)


def _unusable(folder: RunFolder, error: OSError) -> InvalidOption:
    return InvalidOption(
        f"the folder {folder.uri} of run {folder.name!r} cannot be written ({error}). Give the run another name or "
        "storage.",
        name=folder.name,
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
    name, number = title, 2
    while not _is_new(RunFolder.below(storage, name).location):
        name, number = f"{title}-{number}", number + 1
    return run_folder(storage, name)


def _is_new(folder: Location) -> bool:
    if not folder.is_local:
        return not _exists(folder)
    try:
        Path(folder.path).mkdir(parents=True)
    except FileExistsError:
        return False
    return True
