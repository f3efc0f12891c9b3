"""Checks that no resource is left behind, and that the cache is whole and within its quota."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tests.soak import mounts
from tests.soak.case import patience
from tests.soak.dataset import SoakSetting
from tests.soak.epoch import check, epoch

import forebay as fb

GRACE_S = 5.0
# Threads that a library starts once per process and keeps.
PROCESS_WIDE = ("fsspecIO",)
# Children that serve the whole process until it ends: servers of multiprocessing and of data workers.
SERVERS = ("multiprocessing", "import forebay.data.cache.builders.worker_process\n")


class Before:
    """Resources that this process held before a case."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.memory = shared_memory()
        self.files = _open_files()

    def leaks(self, kept: Collection[str] = ()) -> list[str]:
        """Resources that are open now, were not open before, and stayed open for `GRACE_S`.

        Leaves out titles that contain one of `kept`.
        """
        deadline = time.monotonic() + patience(GRACE_S)
        while True:
            gc.collect()
            found = [leak for leak in self._leaks() if not any(word in leak for word in kept)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def _leaks(self) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in self.threads and thread.is_alive()]
        return [
            *(f"thread {thread.name}" for thread in threads if not thread.name.startswith(PROCESS_WIDE)),
            *(f"process {child}" for child in _children()),
            *(f"shared memory {name}" for name in sorted(shared_memory() - self.memory)),
            *(f"open file {name}" for name in sorted(_open_files() - self.files)),
        ]


def _children() -> list[str]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread may end meanwhile
            found += [_command(number) for number in (task / "children").read_text().split()]
    return [name[:120] for name in found if name and not any(server in name for server in SERVERS)]


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or pid
    except OSError:
        return ""


def shared_memory() -> set[str]:
    """Files in /dev/shm. None if mounts are shared: so is it, with every other process of the machine."""
    return set() if mounts.problem() else {path.name for path in Path("/dev/shm").iterdir()}


def _open_files() -> set[str]:
    """Open files on a disk. Descriptors that libraries make themselves (sockets, event counters) come and go."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/")):
            found.add(target)
    return found


def disk_bytes(folder: Path) -> int:
    """Size of a folder on disk, as `du` gives it."""
    seen: dict[int, int] = {}
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files, "."]:
            try:
                found = os.lstat(Path(top, name))
            except FileNotFoundError:
                continue
            seen[found.st_ino] = found.st_blocks * 512  # a file that was just renamed can be listed twice
    return sum(seen.values())


def check_quota(cache: fb.DiskCache) -> None:
    used = disk_bytes(cache.path)
    assert used <= cache.quota_bytes, f"the cache takes {used} bytes, its quota is {cache.quota_bytes}"


def check_cache(setting: SoakSetting, *, may_be_damaged: bool = False) -> None:
    """Assert that the cache is consistent, and that an undisturbed epoch over it is right.

    With `may_be_damaged`, blocks may have been damaged after their last use: this check has to find the damage.
    """
    if setting.cache.disk is None:
        return
    cache = fb.DiskCache(
        setting.disk.path, quota_bytes=setting.disk.quota_bytes, min_free_bytes=setting.disk.min_free_bytes
    )
    check_quota(cache)
    if may_be_damaged:
        cache.verify()
    report = cache.verify()
    assert not report.bad, f"{report.bad} of {report.checked} blocks were damaged and had not been found"
    left = sorted(path.name for path in (cache.path / "temp").iterdir())
    assert left == [], f"unfinished files are left: {left}"
    assert sum(use.blocks for use in cache.datasets()) == report.checked, "the accounts and the blocks differ"
    _check_unlocked(cache.path / "locks")
    check(setting, epoch(setting.with_disk(cache)))
    check_quota(cache)
    _check_unlocked(cache.path / "locks")


def _check_unlocked(locks: Path) -> None:
    held = []
    for path in locks.iterdir():
        with path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.name)
    assert not held, f"locks still held: {held}"
