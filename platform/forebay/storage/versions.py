"""Versions of files.

Size, time of the last change, and the store's own name for the version. Of local files also their inode.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyarrow import fs

from forebay.runtime.uris import has_local_name
from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.fsspec_bridge import ETAGS, Bridge
from forebay.storage.range_reader import RangeReader
from forebay.storage.retry import NotAFile

_STAMPED_BY_STORE = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""Schemes of stores that date every version by their own clock."""
_OPENED_BY_REQUEST = ("s3", "abfs")
_WITHOUT_INODES = ("fuse", "9p", "cifs", "smb", "vboxsf", "drvfs")
_GONE = "gone"
_TURNS = 256
"""Locks under which files are opened, by the hash of their version."""
_TURN_S = 1.0
_SECOND_NS = 1_000_000_000
_LOCAL_TICK_NS = 100_000_000
"""A local file system dates files by a clock that moves every few milliseconds."""
_STORE_TICK_NS = 5 * _SECOND_NS
"""A store dates files by the second, and its clock may differ from the clock of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file and its version.

    `mtime_ns` is 0 if the store keeps no time. `etag` is empty if it names no versions.

    Object stores keep whole seconds (S3, Azure). Two versions of equal size within a second differ only in their
    `etag`.

    `stamp` is of local files: the inode, and the time of its last change, which no program can set. `cp -p`, `tar` and
    `rsync -t` give another file the old size and time, and a new stamp. So do `chmod` and a new hard link, and a copy
    has another one.
    """

    uri: str
    size: int
    mtime_ns: int
    etag: str = ""
    stamp: str = ""

    @property
    def without_stamp(self) -> str:
        """Text of the version, equal for a copy that keeps the time."""
        return f"{self.size} {self.mtime_ns} {self.etag}"

    @property
    def version(self) -> str:
        """Text of the version."""
        return f"{self.without_stamp} {self.stamp}" if self.stamp else self.without_stamp


def stat(uri: str | os.PathLike[str]) -> FoundFile:
    """Present size and time of a file.

    Raises `FileNotFoundError`, `NotAFile`, or the file system's own error.
    """
    location = resolve_source(uri)
    info = location.fs.get_file_info(location.path)
    if info.type == fs.FileType.Unknown:
        raise NotAFile(f"{location.uri} is a pipe or a device, and a file is expected")
    if info.type != fs.FileType.File:
        raise FileNotFoundError(
            f"{location.uri} is {'a folder' if info.type == fs.FileType.Directory else 'not there'}"
        )
    return found(location.uri, info)


def settled_version(file: FoundFile) -> str:
    """Return a version that no later content of a file can have.

    Empty if the file has no such name: it changed a moment ago, so that a later change could get the same time. Or its
    store keeps no time, or lets its users set it. A local name also holds the time of the last change of the inode,
    which no user can set.
    """
    if has_local_name(file.uri):
        try:
            status = _status(file.uri)
        except OSError:
            return ""
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            return ""
        stamp = _stamp(status)
        if file.stamp not in ("", stamp):
            return ""
        changed_ns, tick_ns = max(status.st_mtime_ns, status.st_ctime_ns), _LOCAL_TICK_NS
        version = f"{status.st_mtime_ns}.{stamp}"
    elif file.uri.partition("://")[0] in _STAMPED_BY_STORE and file.mtime_ns:
        changed_ns, tick_ns, version = file.mtime_ns, _STORE_TICK_NS, f"{file.mtime_ns}"
    else:
        return ""
    if changed_ns % _SECOND_NS == 0:  # a file system that keeps whole seconds, or two
        tick_ns = max(tick_ns, 3 * _SECOND_NS)
    return version if time.time_ns() - changed_ns > tick_ns else ""


def stat_etag(uri: str) -> str:
    """`etag` of the present version, for one request.

    Empty if the store names no versions.
    """
    location = resolve_source(uri)
    if location.is_local:
        return ""
    if isinstance(location.fs, fs.PyFileSystem):
        return _bridged_etag(location)
    with location.fs.open_input_file(location.path) as opened:
        return etag_of(location, opened)


def etag_of(location: Location, opened: pa.NativeFile) -> str:
    """`etag` of the version that was opened.

    Costs no request, except for fsspec: opening has read it already.
    """
    if location.is_local:
        return ""
    if isinstance(location.fs, fs.PyFileSystem):
        return _bridged_etag(location)
    facts = opened.metadata()
    return next((facts[name].decode().strip('"') for name in ETAGS if facts.get(name)), "")


class SharedFile(RangeReader):
    """A reader's own position in an open file."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__(file.size())
        self._file = file

    def read_range(self, start: int, stop: int) -> bytes:
        found: bytes = self._file.read_at(stop - start, start)
        return found


class OpenFiles:
    """Open files of known versions, at most `most`. Safe for threads.

    Only of S3 and Azure: there an open file is its size, etag and date, which took a request, and holds no connection.
    It reads whatever version is there. Several readers share one: `SharedFile`.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(_TURNS)]
        self._files: OrderedDict[FoundFile, pa.NativeFile] = OrderedDict()

    @staticmethod
    def keeps(location: Location) -> bool:
        """Whether open files of a store are worth keeping."""
        return location.fs.type_name in _OPENED_BY_REQUEST

    def get(self, version: FoundFile, open_checked: Callable[[], pa.NativeFile]) -> pa.NativeFile:
        """Return the newest open file of a version. The first of several readers opens it."""
        turn = self._turns[hash(version) % _TURNS]
        is_ours = turn.acquire(timeout=_TURN_S)  # an open that stalls must not stall the others
        try:
            with self._lock:
                file = self._files.get(version)
            if file is None:
                file = open_checked()
                self.put(version, file)
            return file
        finally:
            if is_ours:
                turn.release()

    def forget(self, version: FoundFile) -> None:
        """Drop a file that failed. It may have been opened with credentials that have expired since."""
        with self._lock:
            self._files.pop(version, None)

    def put(self, version: FoundFile, file: pa.NativeFile) -> None:
        """Keep a file whose version was just checked."""
        with self._lock:
            self._files[version] = file
            if len(self._files) > self._most:
                self._files.popitem(last=False)


def found(uri: str, info: fs.FileInfo) -> FoundFile:
    """Version of a file as listed.

    Listings of pyarrow hold no `etag`, and no inode of a local file.
    """
    if not has_local_name(uri):
        return FoundFile(uri=uri, size=info.size, mtime_ns=info.mtime_ns or 0)
    try:
        status = _status(uri)
    except OSError:  # since the listing: no version that is read later has this stamp
        return FoundFile(uri=uri, size=info.size, mtime_ns=info.mtime_ns or 0, stamp=_GONE)
    return FoundFile(uri=uri, size=status.st_size, mtime_ns=status.st_mtime_ns, stamp=_stamp(status))


def _status(uri: str) -> os.stat_result:
    return os.stat(uri.removeprefix("file://"))  # noqa: PTH116 - a path takes as long as the call


def _stamp(status: os.stat_result) -> str:
    inode = status.st_ino if _keeps_inodes(status.st_dev) else 0
    return f"{inode}.{status.st_ctime_ns}"


@lru_cache(maxsize=64)
def _keeps_inodes(device: int) -> bool:
    """Whether an unchanged file keeps its inode number.

    FUSE and file systems of hosts make numbers up, and other ones after the kernel has forgotten a file.
    """
    from forebay.storage.private_folder import mounts  # noqa: PLC0415 - few commands need it

    name = f"{os.major(device)}:{os.minor(device)}"
    return not any(each.kind.startswith(_WITHOUT_INODES) for each in mounts() if each.device == name)


def _bridged_etag(location: Location) -> str:
    bridge = location.fs.handler
    return bridge.etag(location.path) if isinstance(bridge, Bridge) else ""
