"""Folders of this user on this machine alone.

No other user can write or replace them, and no network file system holds them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHARED = ("nfs", "lustre", "gpfs", "ceph", "cifs", "smb", "beegfs", "glusterfs", "afs", "wekafs", "orangefs", "panfs")
_SHARED_FUSE = ("ceph", "gluster", "gcsfuse", "s3fs", "mount-s3", "goofys", "rclone", "sshfs", "juicefs", "blobfuse")
_LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock")
_KEPT_S = 60.0
"""Linux's default of `acregmax` and `acdirmax`, which it does not list."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """A line of `/proc/self/mountinfo`."""

    device: str
    point: str
    kind: str
    source: str
    options: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        """Whether other machines may have the same files."""
        if self.kind.startswith("fuse"):
            return any(name in f"{self.kind} {self.source}".lower() for name in _SHARED_FUSE)
        return self.kind.startswith(_SHARED)

    @property
    def has_own_locks(self) -> bool:
        """Whether other machines do not see the locks of this one."""
        return self.is_shared and any(option in _LOCAL_LOCKS for option in self.options)

    @property
    def late_s(self) -> float:
        """Seconds by which a file that is opened may be out of date.

        0, unless NFS is mounted with `nocto`: else it asks its server whenever a file or a folder is opened.
        """
        if not self.kind.startswith("nfs") or "nocto" not in self.options or "noac" in self.options:
            return 0.0
        given = dict(option.partition("=")[::2] for option in self.options)
        return max(float(given.get(name, _KEPT_S)) for name in ("acregmax", "acdirmax"))

    @property
    def title(self) -> str:
        """Name for messages."""
        return f"{self.kind} ({self.source} on {self.point})"


def mount_of(path: str | os.PathLike[str]) -> MountPoint | None:
    """Mount that holds `path`, or its nearest folder that exists.

    None where the system does not tell.
    """
    at = Path(path).absolute()
    while True:
        try:
            device = at.stat().st_dev
            break
        except OSError:
            if at == at.parent:
                return None
            at = at.parent
    at = at.resolve()
    found = [each for each in mounts() if each.device == f"{os.major(device)}:{os.minor(device)}"]
    above = [each for each in found if at.is_relative_to(each.point)]
    return max(above or found, key=lambda each: len(each.point), default=None)


def mounts() -> list[MountPoint]:
    """All mounts that this process sees. Empty where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    return [_mount(line) for line in lines]


def _mount(line: str) -> MountPoint:
    left, _, right = line.partition(" - ")
    _, _, device, _, point, options, *_ = left.split(" ")
    kind, source, more = (*right.split(" "), "", "", "")[:3]
    text = point.encode().decode("unicode_escape", errors="replace") if "\\" in point else point
    return MountPoint(
        device=device, point=text, kind=kind, source=source, options=(*options.split(","), *more.split(","))
    )
