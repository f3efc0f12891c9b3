"""Machines that are namespaces of this kernel: network, processes, host name, mounts of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETUP = """
hostname {name}
mount --make-rprivate /
mount -t tmpfs tmpfs /dev/shm
mount --bind {folder}/tmp /tmp/ray
exec sleep infinity
"""
SSH = """#!/bin/sh
# Stands for ssh: the homes of all machines lie on one disk.
host=$1
shift
HOME={folder}/home-$host exec sh -c "$*"
"""


class Machine:
    """`run` runs a line of shell on it, `stop` is its power switch."""

    def __init__(self, folder: Path, number: int) -> None:
        self.address, self._folder = f"10.77.0.{number}", folder
        self.home = folder / f"home-{self.address}"
        own = folder / f"machine-{number}"
        for each in (self.home, own / "tmp"):
            each.mkdir(parents=True)
        self._setup = SETUP.format(name=f"machine-{number}", folder=own)
        self.start()

    def start(self) -> None:
        """Switch it on."""
        spaces = ["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(["unshare", *spaces, "sh", "-ec", self._setup])
        self.pid = self._first_process()

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for _ in range(200):
            found = children.read_text().split() if children.exists() else []
            if found and Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep":
                return int(found[0])
            time.sleep(0.05)
        raise OSError("the namespaces of a machine could not be made")

    def begin(self, line: str) -> subprocess.Popen[str]:
        """Begin a line of shell in a login of its own."""
        python = str(Path(sys.executable).parent)
        environment = {
            "PATH": f"{self._folder}/bin:{python}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "FOREBAY_RARE_GC": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }
        return subprocess.Popen(
            ["nsenter", "--target", str(self.pid), "--all", "sh", "-ec", line],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, line: str, within_s: float = 120.0) -> str:
        """Run a line of shell to its end. Raises `CalledProcessError` with its output."""
        with self.begin(line) as process:
            try:
                said, _ = process.communicate(timeout=within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if process.returncode:
            raise AssertionError(f"{line}\n{process.returncode}\n{said}")
        return said

    def stop(self) -> None:
        """Cut its power: all its processes end at once."""
        self._process.kill()
        self._process.wait()


def problem() -> str:
    """Why no machine can be made here. Empty if one can."""
    if os.geteuid() != 0:
        return "namespaces of networks need root"
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"without {' and '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip()


@contextmanager
def network(folder: Path) -> Iterator[list[Machine]]:
    """Two machines, linked by a cable. They end with the block."""
    Path("/tmp/ray").mkdir(exist_ok=True)  # each machine mounts its own over it
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir(parents=True)
    ssh.write_text(SSH.format(folder=folder))
    ssh.chmod(0o755)
    machines = [Machine(folder, number) for number in (1, 2)]
    try:
        plug(*machines)
        yield machines
    finally:
        for machine in machines:
            machine.stop()


def plug(one: Machine, two: Machine) -> None:
    """Link two machines. Both ends lie inside of them."""
    inside = ["nsenter", "--target", str(one.pid), "--net"]
    subprocess.run(
        [*inside, *f"ip link add eth0 type veth peer name eth0 netns /proc/{two.pid}/ns/net".split()], check=True
    )
    for each in (one, two):
        for words in ("link set lo up", "link set eth0 up", f"addr add {each.address}/24 dev eth0"):
            subprocess.run(["nsenter", "--target", str(each.pid), "--net", "ip", *words.split()], check=True)
