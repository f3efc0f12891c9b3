"""Layout of a cache directory, and its safety checks."""

from __future__ import annotations

import os
import re
import secrets
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import CacheUnusable
from forebay.runtime.uris import SCHEME
from forebay.storage.file_lock import FileLock, try_lock
from forebay.storage.private_folder import mount_of, unsafe_folder, unsafe_path

PART = re.compile(r"(?P<key>[0-9a-f]{40})-(?P<nbytes>[0-9]{1,18})-[0-9a-f]{16}\.part")
"""Name of an unfinished file."""
_BLOCK = re.compile(r"(?P<key>[0-9a-f]{40})\.block")
_USER = re.compile(r"[0-9a-f]{16}\.json")
QUARANTINED = re.compile(r"[0-9]{20}-[0-9a-f]{40}")
"""Name of a quarantined block."""
_NUM_STRIPES = 256


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Absolute path of a cache. Raises `CacheUnusable` for a URI."""
    if SCHEME.match(os.fspath(path)):
        raise CacheUnusable(
            f"cache directory {os.fspath(path)} is a URI. Name a directory on a local disk, or set cache=None to train "
            "without a cache.",
            path=os.fspath(path),
        )
    return Path(path).expanduser().absolute()


@dataclass(frozen=True, slots=True)
class CacheDirectory:
    """Paths below the `root` of a cache.

    Folders blocks/, temp/, quarantine/, locks/, users/ and index/.
    """

    root: Path

    @property
    def blocks(self) -> Path:
        return self.root / "blocks"

    @property
    def temp(self) -> Path:
        return self.root / "temp"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def users(self) -> Path:
        return self.root / "users"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def is_cache(self) -> bool:
        """Whether the directory holds a cache."""
        return self.blocks.is_dir()

    def block(self, key: str) -> Path:
        return self.blocks / f"{key}.block"

    def flight_lock(self, key: str) -> Path:
        """Lock file of the builder of block `key`, which removes it.

        Of 128 builds at once that shared 256 files, 28 would wait for an unrelated one.
        """
        return self.locks / f"flight-{key}"

    def remove_ended_flights(self) -> None:
        """Remove lock files that killed builders left."""
        for path in self.locks.glob("flight-*"):
            with suppress(OSError):
                if lock := try_lock(path, flags=0):
                    lock.remove(path)

    def use_lock(self, dataset: str) -> Path:
        """Lock file that users of `dataset` share.

        Some datasets share a file.
        """
        return self.locks / f"use-{_stripe(dataset)}"

    def block_keys(self) -> list[str]:
        with os.scandir(self.blocks) as found:
            names = [_BLOCK.fullmatch(entry.name) for entry in found if entry.is_file(follow_symlinks=False)]
        return sorted(name["key"] for name in names if name)

    def user_files(self) -> list[Path]:
        """Files of leases, one each, including some ended leases."""
        try:
            with os.scandir(self.users) as found:
                names = [entry.name for entry in found if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:  # the whole directory was removed: its next use raises
            return []
        return [self.users / name for name in names if _USER.fullmatch(name)]

    def parts(self) -> dict[str, int]:
        """Unfinished files: name -> upper limit of its bytes."""
        with os.scandir(self.temp) as found:
            names = [PART.fullmatch(entry.name) for entry in found if entry.is_file(follow_symlinks=False)]
        return {name[0]: int(name["nbytes"]) for name in names if name}

    def quarantined(self) -> dict[str, int]:
        """Quarantined blocks: name -> bytes. Names sort by time."""
        found = (path for path in self.quarantine.iterdir() if QUARANTINED.fullmatch(path.name))
        return {path.name: path.lstat().st_size for path in found}

    def prepare(self) -> None:
        """Create missing folders.

        Raises `CacheUnusable` if the directory is not writable, or writable by others.
        """
        try:
            self._refuse_shared_disk()
            self._refuse_unsafe_path()
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_unsafe_path()
            self._refuse_unsafe_folder(self.root, self.root.stat())
            folders = (self.blocks, self.temp, self.quarantine, self.locks, self.users, self.index)
            # A folder with other contents, such as the root of a disk, keeps its permissions for other readers.
            if {path.name for path in self.root.iterdir()} <= {folder.name for folder in folders}:
                self.root.chmod(0o700)
            for folder in folders:
                folder.mkdir(mode=0o700, exist_ok=True)
                self._refuse_unsafe_folder(folder, folder.lstat())
                folder.chmod(0o700)
            new_part(self, "0" * 40, 0).discard()
        except OSError as error:
            raise CacheUnusable(
                f"cache directory {self.root}: cannot be written ({error.strerror or error}). "
                "Name a directory of your own on a local disk, or set cache=None to train without a cache.",
                path=str(self.root),
            ) from error

    def _refuse_shared_disk(self) -> None:
        """Raise `CacheUnusable` on a network file system.

        Several machines would share one index, whose locks may not reach that far, and one quota. A mapped block whose
        file is gone kills the process (SIGBUS).
        """
        if (mount := mount_of(self.root)) is not None and mount.is_shared:
            raise CacheUnusable(
                f"cache directory {self.root}: is on {mount.title}, a network file system, and a cache belongs to one "
                "machine. Name a directory on a local disk, or set cache=None to train without a cache.",
                path=str(self.root),
            )

    def _refuse_unsafe_folder(self, folder: Path, found: os.stat_result) -> None:
        if problem := unsafe_folder(found):
            raise CacheUnusable(
                f"cache directory {folder}: {problem}, so others could change what is trained on. "
                f"Name a directory of your own, such as {self.root / 'forebay'}.",
                path=str(self.root),
            )

    def _refuse_unsafe_path(self) -> None:
        """Raise `CacheUnusable` if another user could replace this directory.

        Now or later, with a directory of their own.
        """
        if problem := unsafe_path(self.root):
            raise CacheUnusable(
                f"cache directory {self.root}: {problem}, so others could change what is trained on. "
                "Name a directory of your own in another folder.",
                path=str(self.root),
            )


def _stripe(name: str) -> str:
    return f"{zlib.crc32(name.encode()) % _NUM_STRIPES:02x}"


@dataclass(frozen=True, slots=True)
class PartFile:
    """Block file during its write, locked by the writer.

    A lock that can be taken proves that the writer died.
    """

    path: Path
    lock: FileLock

    def discard(self) -> None:
        """Release the lock, and remove an unfinished file."""
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.lock.release()


def new_part(directory: CacheDirectory, key: str, nbytes: int) -> PartFile:
    """Create an empty, locked file in temp/.

    Its name holds its maximum size, in case the index is lost.
    """
    while True:
        path = directory.temp / f"{key}-{nbytes}-{secrets.token_hex(8)}.part"
        # A sweep may remove the new file before it is locked: then create another.
        if lock := try_lock(path, flags=os.O_CREAT | os.O_EXCL):
            return PartFile(path, lock)
