"""Files of compiled kernels, shared by the processes of a machine.

A name contains a digest of all that the machine code depends on, so a file is never stale.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from forebay.storage.file_lock import FileLock, try_lock
from forebay.storage.private_folder import unsafe_folder, unsafe_path

log = logging.getLogger(__name__)

_CODE, _SUM = ".1.nbc", ".sum"
"""Suffixes of Numba's file with the machine code, and of its checksum."""
_UNUSED_S = 30 * 86400
_GIVEN = "NUMBA_CACHE_DIR"


class KernelFiles:
    """Compiled kernels in folders.

    Read from the first that has them, written to the first that this process may write to. If it may write to none,
    nothing is kept, and a warning says so once.
    """

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._target: Path | None = None
        self._is_chosen = False

    @property
    def target(self) -> Path | None:
        """Folder that is written to."""
        if not self._is_chosen:
            self._is_chosen, refused = True, list[str]()
            for folder in self._folders:
                reason = _refusal(folder)
                if not reason:
                    self._target = folder
                    break
                refused.append(f"{folder} ({reason})")
            if self._target is None or (refused and _GIVEN in os.environ):
                where = f"kept in {self._target}" if self._target else "compiled again by each process"
                log.warning("Kernels cannot be kept in %s. They are %s. Set %s.", ", ".join(refused), where, _GIVEN)
        return self._target

    def find(self, name: str) -> Path | None:
        """Folder with all of a kernel, as it was written."""
        for folder in self._folders:
            with suppress(OSError):
                if (folder / (name + _SUM)).read_text() == _sum_of(folder, name):
                    return folder
        return None

    def write(self, name: str, save: Callable[[Path], None]) -> None:
        """Keep a kernel if the disk has space.

        `save` writes Numba's files of this name into a folder.
        """
        if self.target is None:
            return
        try:
            save(self.target)
            # Last: a process that was killed before has written nothing.
            _replace(self.target / (name + _SUM), _sum_of(self.target, name))
        except OSError as error:
            log.warning("Kernels cannot be kept in %s (%s): other processes compile them again.", self.target, error)
            self._target = None
            return
        _remove_unused(self.target, name)

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Claim the work of one name among all processes.

        Whether this process has it. It ends with the process, whatever kills it.
        """
        lock = self._lock(name)
        try:
            yield lock is not None
        finally:
            if isinstance(lock, FileLock) and self.target is not None:
                lock.remove(self.target / f".{name}.lock")

    def _lock(self, name: str) -> FileLock | bool | None:
        if self.target is None:
            return True
        try:
            return try_lock(self.target / f".{name}.lock")
        except OSError:  # a file system without locks: compiling twice is better than not at all
            return True


@cache
def kernel_files() -> KernelFiles:
    """Files of this process.

    In NUMBA_CACHE_DIR or beside the package, else in the user's cache, else in a temporary folder of the user.
    """
    given = os.environ.get(_GIVEN)
    folders = [Path(given) if given else Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # no home
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay" / "kernels")
    if all(map(_refusal, folders)):
        temporary = Path(tempfile.gettempdir()) / f"forebay-kernels-{os.geteuid()}"
        with suppress(OSError):
            temporary.mkdir(mode=0o700, exist_ok=True)
            if not unsafe_path(temporary) and not unsafe_folder(temporary.lstat()):
                folders.append(temporary)
    return KernelFiles(tuple(folders))


def _refusal(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _sum_of(folder: Path, name: str) -> str:
    return hashlib.sha256((folder / (name + _CODE)).read_bytes()).hexdigest()


def _replace(path: Path, content: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        Path(name).replace(path)
    finally:
        with suppress(OSError):  # renamed
            Path(name).unlink()


def _remove_unused(folder: Path, name: str) -> None:
    """Remove what earlier versions of a kernel left."""
    for each in folder.glob(f"{name.rpartition('-')[0]}-*"):
        with suppress(OSError):
            if each.stat().st_mtime < time.time() - _UNUSED_S:
                each.unlink()
