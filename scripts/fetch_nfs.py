"""Fetch Linux with its server and client of NFS, for a virtual machine that the tests start.

Debian's packages are unpacked into a folder, nothing is installed. QEMU itself comes from the system: as root and
where CI is set, this script installs it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(os.environ.get("FOREBAY_NFS", "~/.cache/forebay/nfs")).expanduser()
QEMU = "qemu-system-x86_64"
KERNEL = "linux-image-amd64"
PACKAGES = (
    *("nfs-kernel-server", "nfs-common", "rpcbind", "busybox-static", "kmod"),
    *("libtirpc3", "libnfsidmap1", "libevent-core-2.1-7", "libwrap0", "libkeyutils1"),
)
# In the order in which they are loaded, for a root file system on the disk of this machine.
FIRST = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("9pnet", "9pnet_virtio", "netfs", "fscache", "9p", "overlay"),
)
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for each in /modules/*; do $b insmod $each; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
$b mount -t tmpfs over /over; $b mkdir /over/upper /over/work
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 packages /packages
$b mount -t overlay -o lowerdir=/packages:/host,upperdir=/over/upper,workdir=/over/work overlay /root
for each in proc sys dev; do $b mount --move /$each /root/$each; done
exec $b chroot /root /bin/sh $($b sed 's/.*script=\\([^ ]*\\).*/\\1/' /root/proc/cmdline)
"""


def root() -> Path:
    """Folder with the files of the packages."""
    return FOLDER / "root"


def kernel() -> Path:
    """Path of the kernel, which may not be there."""
    return FOLDER / "vmlinuz"


def initial_disk() -> Path:
    """Path of the first file system of the virtual machine."""
    return FOLDER / "initrd"


def problem() -> str:
    """Why the virtual machine cannot start. Empty if it can."""
    if shutil.which(QEMU) is None:
        return f"{QEMU} is not installed"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    return "" if initial_disk().exists() else f"{FOLDER} has no kernel: python scripts/fetch_nfs.py"


def fetch() -> None:
    """Download and unpack. Raises `OSError`, and `CalledProcessError` if the packages are not found."""
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        raise OSError("it needs Debian or Ubuntu on x86_64")
    if shutil.which(QEMU) is None:
        if os.geteuid() != 0 or "CI" not in os.environ:  # a test of others' machines installs nothing there
            raise OSError(f"install {QEMU} (the package qemu-system-x86)")
        _run("apt-get", "install", "-y", "-q", "--no-install-recommends", "qemu-system-x86")
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        folder = Path(name) / "nfs"
        (folder / "root").mkdir(parents=True)
        depends = _run("apt-cache", "depends", KERNEL)
        (image,) = set(re.findall(r"Depends: (linux-image-\S+)", depends))
        _run("apt-get", "download", "-q", image, *PACKAGES, cwd=name)
        for package in Path(name).glob("*.deb"):
            _run("dpkg-deb", "-x", str(package), str(folder / "root"))
        packages = folder / "root"
        (version,) = (each.name for each in (packages / "lib/modules").iterdir())
        (packages / "boot" / f"vmlinuz-{version}").rename(folder / "vmlinuz")
        (folder / "initrd").write_bytes(_archive(packages, version))
        modules = packages / "lib/modules" / version / "kernel"
        for module in [*(modules / "sound").rglob("*.ko"), *(modules / "drivers").rglob("*.ko")]:
            if module.name != "veth.ko":  # 300 MB
                module.unlink()
        _run(str(packages / "sbin/depmod"), "-b", str(packages), version)
        for each in ("bin", "sbin", "lib"):  # as on the machine over whose files they are mounted
            shutil.copytree(packages / each, packages / "usr" / each, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(packages / each)
        shutil.rmtree(FOLDER, ignore_errors=True)
        folder.rename(FOLDER)


def _archive(packages: Path, version: str) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for folder in ("bin", "proc", "sys", "dev", "host", "over", "root", "modules", "packages"):
            (top / folder).mkdir()
        shutil.copy(packages / "bin/busybox", top / "bin/busybox")
        for number, module in enumerate(FIRST):
            (found,) = (packages / "lib/modules" / version).rglob(f"{module}.ko")
            shutil.copy(found, top / "modules" / f"{number:02d}-{found.name}")
        (top / "init").write_text(INIT)
        (top / "init").chmod(0o755)
        names = "\n".join(str(each.relative_to(top)) for each in sorted(top.rglob("*")))
        command = [str(top / "bin/busybox"), "cpio", "-o", "-H", "newc"]
        return subprocess.run(command, input=names.encode(), cwd=top, capture_output=True, check=True).stdout  # noqa: S603 - words of this file


def _run(*words: str, cwd: str | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - words of this file
    return done.stdout


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--or-skip", action="store_true", help="succeed without it: tests skip then")
    options = parser.parse_args()
    if problem():
        try:
            fetch()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            if not options.or_skip:
                raise
            print(f"   a virtual machine for NFS cannot be had here ({error}): its tests skip")
            return
    print(f"   Linux with NFS in {FOLDER}")


if __name__ == "__main__":
    main()
