"""Mounted file systems of this machine, and what a network file system cannot promise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_SHARED = ("nfs", "lustre", "gpfs", "ceph", "cifs", "smb", "beegfs", "glusterfs", "afs", "wekafs", "orangefs", "panfs")
_SHARED_FUSE = ("ceph", "gluster", "gcsfuse", "s3fs", "mount-s3", "goofys", "rclone", "sshfs", "juicefs", "blobfuse")
_LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock")
_KEPT_S = 60.0
"""Linux's default of `acregmax` and `acdirmax`, which it does not list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
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


def mount_of(path: str | os.PathLike[str]) -> Mount | None:
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


def mounts() -> list[Mount]:
    """All mounts that this process sees. Empty where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    return [_mount(line) for line in lines]


def _mount(line: str) -> Mount:
    left, _, right = line.partition(" - ")
    _, _, device, _, point, options, *_ = left.split(" ")
    kind, source, more = (*right.split(" "), "", "", "")[:3]
    text = point.encode().decode("unicode_escape", errors="replace") if "\\" in point else point
    return Mount(device=device, point=text, kind=kind, source=source, options=(*options.split(","), *more.split(",")))
