"""Folders that no other user can write or replace."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40


def unsafe_path(path: Path) -> str:
    """Reason why another user could replace `path`. Empty if none can.

    Raises `OSError`.
    """
    for step in _path_steps(path):
        holder = step.parent.stat()
        if holder.st_uid not in (0, os.geteuid()):
            return f"{step.parent} belongs to user {holder.st_uid}, who can replace its entries"
        if not holder.st_mode & stat.S_IWOTH:
            continue
        if not holder.st_mode & stat.S_ISVTX:
            return f"all users can replace the entries of {step.parent} (no sticky bit)"
        if os.path.lexists(step) and step.lstat().st_uid not in (0, os.geteuid()):
            return f"{step} belongs to user {step.lstat().st_uid}, in a folder that all users can write"
    return ""


def unsafe_folder(found: os.stat_result) -> str:
    """Reason why another user could change a folder's entries, or empty."""
    if not stat.S_ISDIR(found.st_mode):
        return "is a link or a file, not a folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
    if found.st_mode & stat.S_IWOTH:
        return f"is writable by all users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _path_steps(path: Path) -> Iterator[Path]:
    """Folders and symbolic links on the way to `path`, and `path` itself.

    Up to the first that does not exist.
    """
    at, ahead, num_links = Path("/"), list(path.parts[1:]), 0
    while ahead:
        at /= ahead.pop(0)
        yield at
        if not os.path.lexists(at):
            return
        if at.is_symlink():
            num_links += 1
            if num_links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = at.readlink()
            ahead = [*target.parts, *ahead]
            at = at.parent  # an absolute target begins with "/", which takes its place
