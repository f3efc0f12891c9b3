"""Mounts by their lines in /proc/self/mountinfo: which are shared, which show files late."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.storage import private_folder
from forebay.storage.private_folder import MountPoint, mount_of

LINE = "63 24 0:50 / {point} rw,relatime shared:7 - {kind} {source} rw,vers=4.2{options}"


def mount(kind: str, source: str = "server:/export", options: str = "", point: str = "/share") -> MountPoint:
    text = LINE.format(kind=kind, source=source, options=f",{options}" if options else "", point=point)
    return private_folder._mount(text)


@pytest.mark.parametrize(
    ("kind", "source", "is_shared"),
    [
        *(
            (kind, "server:/export", True)
            for kind in ("nfs", "nfs4", "lustre", "gpfs", "ceph", "cifs", "smb3", "beegfs")
        ),
        *(("fuse.gcsfuse", "bucket", True), ("fuse", "s3fs", True), ("fuse.sshfs", "host:", True)),
        *((kind, "/dev/sda1", False) for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "9p")),
        *(("fuse.fuse-overlayfs", "fuse-overlayfs", False), ("fuseblk", "/dev/sdb1", False)),
    ],
)
def test_shared_disks_are_known(kind: str, source: str, is_shared: bool) -> None:
    assert mount(kind, source).is_shared is is_shared


@pytest.mark.parametrize(
    ("kind", "options", "late_s"),
    [
        ("nfs4", "", 0),
        ("nfs4", "acdirmax=600", 0),  # a folder that is opened is asked for
        ("nfs4", "nocto", 60),
        ("nfs", "nocto,acregmax=5", 60),
        ("nfs", "nocto,acregmax=5,acdirmax=10", 10),
        ("nfs", "nocto,noac", 0),
        ("ext4", "nocto", 0),
    ],
)
def test_late_by_the_time_that_a_client_answers_from_its_cache(kind: str, options: str, late_s: float) -> None:
    assert mount(kind, options=options).late_s == late_s


@pytest.mark.parametrize("options", ["nolock", "local_lock=all", "local_lock=flock", "localflock"])
def test_locks_that_reach_no_other_machine(options: str) -> None:
    assert mount("nfs", options=options).has_own_locks
    assert not mount("ext4", options=options).has_own_locks
    assert not mount("nfs4", options="local_lock=none").has_own_locks


def test_names_with_spaces_are_decoded() -> None:
    assert mount("nfs4", point=r"/my\040share").title == "nfs4 (server:/export on /my share)"


def test_of_a_path_that_is_not_there_its_nearest_folder_counts(tmp_path: Path) -> None:
    found = mount_of(tmp_path / "not" / "yet")
    assert found == mount_of(tmp_path)
    assert found is None or not found.is_shared
    proc = mount_of("/proc/self/status")
    assert proc is None or (proc.kind, proc.point) == ("proc", "/proc")
