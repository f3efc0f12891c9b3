"""Files that are looked for, read and written whole, and the folders of new ones."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pyarrow import fs

from forebay.errors import StorageFull, WriteFailed
from forebay.storage.credentials import redact, redacting
from forebay.storage.filesystem import Location, resolve, resolve_source
from forebay.storage.retry import NotAFile

_held: Counter[Path] = Counter()
"""Folders that this process has had, and never creates again.

A share that was unmounted leaves an empty folder on another disk. What is written there by its name is lost, or hides
what the share holds.
"""
_held_lock = threading.Lock()


def hold(folder: Location) -> None:
    """Let no write of this process create `folder`, until `let_go`.

    Only a local folder, which exists now: object stores have none.
    """
    if folder.is_local:
        with _held_lock:
            _held[Path(folder.path)] += 1


def let_go(folder: Location) -> None:
    """End what one call of `hold` began."""
    if folder.is_local:
        path = Path(folder.path)
        with _held_lock:
            _held[path] -= 1
            if _held[path] <= 0:
                del _held[path]


def make_folder(folder: Path) -> None:
    """Create `folder` and its missing parents.

    Raises `FileNotFoundError` where a held folder is missing, below which `folder` lies.
    """
    path = (folder, *folder.parents)
    held = next((each for each in path if each in _held), None)
    if held is None:
        folder.mkdir(parents=True, exist_ok=True)
        return
    for each in reversed(path[: path.index(held)]):
        each.mkdir(exist_ok=True)


def look_again(folder: Path) -> None:
    """Let the names in `folder` be those that its server has now. Raises `OSError`.

    A client of NFS answers from its cache for up to a minute (`acdirmax`), also that a file or its folder is not there,
    or what a file was before another machine replaced it. It asks its server when a folder is opened (close-to-open),
    and forgets the names of one that has changed. On a local disk this takes 5 us.
    """
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except (FileNotFoundError, NotADirectoryError):
        if folder != folder.parent:
            look_again(folder.parent)
    except PermissionError:  # the read itself says so
        pass


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of storage without room."""
NO_ROOM = (*FULL, errno.EFBIG)
"""Numbers of the errors of a file that has no room. A process may be limited itself (`ulimit -f`)."""
LEAST_BYTES = 1 << 20
"""Room below which a disk counts as full. Records of runs are smaller, checkpoints are not."""
ADVICE = "Check that the storage answers, has room, and that this user may write to it."
UMASK = os.umask(0)
"""Read once at import: reading it requires setting it, for all threads."""
os.umask(UMASK)


def write_atomically(uri: str | os.PathLike[str] | Location, content: bytes) -> None:
    """Write or replace one file.

    A local one goes through a temporary file beside it. An object appears when it is closed.

    Raises `OSError` if the storage refuses.
    """
    location = resolve(uri)
    if not location.is_local:
        with redacting(), location.fs.open_output_stream(location.path) as stream:
            stream.write(content)
        return
    draft = Draft(Path(location.path))
    try:
        draft.write(content)
        draft.keep()
    finally:
        draft.give_up()


class Draft:
    """A temporary file beside `target`.

    `keep` renames it to `target`.
    """

    def __init__(self, target: Path) -> None:
        make_folder(target.parent)
        self._target = target
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        self._path: Path | None = Path(name)
        self._file = os.fdopen(descriptor, "wb")

    def write(self, content: bytes) -> None:
        """Append `content`. Raises `OSError`.

        Flushes, so that a full disk is noticed now.
        """
        self._file.write(content)
        self._file.flush()

    def keep(self) -> None:
        """Sync the file, and rename it to `target`. Raises `OSError`."""
        assert self._path is not None
        # fsync before the rename: after a crash a torn file must never look complete.
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.chmod(0o666 & ~UMASK)
        self._path.replace(self._target)
        self._path = None

    def give_up(self) -> None:
        """Remove the temporary file, unless it was kept."""
        if self._path is None:
            return
        with suppress(OSError):  # what did not fit before
            self._file.close()
        with suppress(OSError):  # why it is given up is known already
            self._path.unlink(missing_ok=True)
        self._path = None


def write_failed(
    what: str, uri: str, error: BaseException, advice: str = ADVICE, *, is_shared: bool = True, **facts: object
) -> WriteFailed:
    """Error for what could not be written.

    `what` is such as "the result of run 'a'". `error` is why `uri` refused it. `is_shared`: whether another machine
    would write to the same storage, so that it is a `StorageFull` without room.

    It quotes the first line of `error`, without secrets. `uri` and `facts` become attributes of the error.
    """
    reason = redact(f"{type(error).__name__}: {error}".partition("\n")[0])
    kind = StorageFull if is_shared and isinstance(error, OSError) and error.errno in FULL else WriteFailed
    return kind(f"{what} could not be written to {uri} ({reason}). {advice}", uri=uri, **facts)


def without_room(uri: str | os.PathLike[str] | Location) -> str:
    """Sentence about storage on a disk without room, else an empty text.

    Only of a folder: a bucket has no size, and a quota is not seen.
    """
    location = resolve(uri)
    if not location.is_local:
        return ""
    try:
        found = os.statvfs(location.path)
    except OSError:
        return ""
    free = found.f_bavail * found.f_frsize
    if free >= LEAST_BYTES:
        return ""
    return f"{location.path} has {free:,} bytes free: make room there"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises `NotAFile` for anything else, and `OSError`: who opens a pipe waits for a writer, and a device has no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise NotAFile(f"{path} is a folder, a pipe or a device, and a file is expected")


def read_small(location: Location, most: int | None = None) -> bytes:
    """Return the whole content of a file. Raises `OSError`.

    As stored: pyarrow would otherwise decompress a file whose name ends in `.gz` or alike. A file of more than `most`
    bytes is a `NotAFile`: memory ends before a terabyte that somebody else has put there.
    """
    if location.is_local:
        look_again(Path(location.path).parent)
        with open_regular(Path(location.path)) as file:
            # Its size is asked first: the content of a sparse file is made as it is read.
            _require_small(os.fstat(file.fileno()).st_size, most, location)
            return file.read()
    with location.fs.open_input_stream(location.path, compression=None) as stream:
        content = bytes(stream.read(None if most is None else most + 1))
    _require_small(len(content), most, location)
    return content


def _require_small(size: int, most: int | None, location: Location) -> None:
    if most is not None and size > most:
        raise NotAFile(f"{location.uri} has more than {most:,} bytes")


def find_small(location: Location) -> bytes | None:
    """Return the whole content of a file, or None without one.

    Raises `OSError`.
    """
    try:
        return read_small(location)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_there(uri: str | Location) -> bool:
    """Whether a file exists, at the cost of one request.

    Raises `OSError` if storage does not answer.
    """
    location = resolve_source(uri)
    if location.is_local:
        look_again(Path(location.path).parent)
        return bool(location.fs.get_file_info(location.path).type == fs.FileType.File)
    try:
        # Opening is one HEAD request. `get_file_info` lists the folder, too.
        with location.fs.open_input_file(location.path):
            return True
    except FileNotFoundError:
        return False
