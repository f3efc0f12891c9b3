"""File systems of this process and its children alone: their /dev/shm holds no other process's segments."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_problem = "no private mounts were asked for"


def make_private() -> None:
    """Give this process its own mounts. It must have one thread. `problem` tells whether that was refused."""
    global _problem  # noqa: PLW0603 - a fact about the process
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS if user == 0 else _NEWNS | _NEWUSER):
        _problem = f"mounts of its own are refused to this process ({os.strerror(ctypes.get_errno())})"
        return
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    try:
        _mount("--make-rprivate", "/")
        _mount("-t", "tmpfs", "-o", f"size={_shm_bytes()}", "tmpfs", "/dev/shm")
    except RuntimeError as error:
        _problem = str(error)
    else:
        _problem = ""


def problem() -> str:
    """Reason why this process cannot mount anything. Empty if it can."""
    return _problem


def mount_tmpfs(folder: Path, num_bytes: int) -> None:
    """Mount a small file system at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={num_bytes},mode=0700", "tmpfs", str(folder))


def remount(folder: Path, options: str) -> bool:
    """Remount with `options`. False if a file in it is open for writing, which prevents a change to read-only."""
    try:
        _mount("-o", f"remount,{options}", str(folder))
    except RuntimeError as error:
        if "busy" in str(error):
            return False
        raise
    return True


def unmount_below(folder: Path) -> None:
    """Unmount everything that a case mounted there and did not unmount."""
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for target in reversed(targets):
        if Path(target).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", target], capture_output=True, check=False)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def _shm_bytes() -> int:
    found = os.statvfs("/dev/shm")
    return found.f_blocks * found.f_frsize
