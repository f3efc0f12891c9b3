"""A virtual machine with Linux's server and client of NFS, since the kernel of this machine may have neither.

It reads the disk of this machine, under a layer in memory. QEMU computes its instructions one by one (no KVM), which is
some 15 times slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.fetch_nfs import QEMU, initial_disk, kernel, root

GUEST = Path(__file__).with_name("guest.py")
PLATFORM = Path(__file__).parents[3] / "platform"
SHARED = "local,security_model=none,readonly=on,multidevs=remap"
SCRIPT = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} OMP_NUM_THREADS=1
mount -t tmpfs run /run
mkdir -p /dev/shm /run/home && mount -t tmpfs shm /dev/shm
ip link set lo up
modprobe -a nfsd nfsv4 nfsv3 veth
{python} -u {guest}
echo o > /proc/sysrq-trigger
sleep 60
"""


def run(folder: Path, within_s: float, **settings: object) -> dict[str, dict[str, Any]]:
    """Start it, and return the facts that each case printed. `settings` are environment variables of the guest."""
    script, log = folder / "guest.sh", folder / "guest.log"
    exports = "".join(f"export {name}={value}\n" for name, value in settings.items())
    script.write_text(exports + SCRIPT.format(python=sys.executable, guest=GUEST, path=PLATFORM))
    command = [
        *(QEMU, "-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048", "-net", "none"),
        *("-nographic", "-nodefaults", "-serial", "stdio", "-no-reboot"),
        *("-virtfs", f"{SHARED},path=/,mount_tag=host", "-virtfs", f"{SHARED},path={root()},mount_tag=packages"),
        *("-kernel", str(kernel()), "-initrd", str(initial_disk())),
        *("-append", f"console=ttyS0 loglevel=3 panic=-1 mitigations=off script={script}"),
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output) as machine:
        try:
            machine.wait(within_s)
        except subprocess.TimeoutExpired:
            machine.kill()
    lines = log.read_text(errors="replace").splitlines()
    found = [json.loads(line.partition("CASE ")[2]) for line in lines if "CASE {" in line]
    cases = {facts.pop("case"): facts for facts in found}
    assert "end" in cases, os.linesep.join(lines[-40:])
    return cases
