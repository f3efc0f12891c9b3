"""Network of the ranks: each has a network namespace of its own, with one link to a switch, counted and slowed down.

Needs Linux, root, and the commands unshare, nsenter, ip and tc. Nothing of it outlives the processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

OWN_NAMESPACE = ("unshare", "--net")
"""Command in front of another one that gives it a network namespace of its own."""
_SWITCH, _LINK = "switch0", "link0"
_BURST, _LATENCY = "64kb", "2000ms"
_WAIT_S = 30.0


def require_namespaces() -> None:
    """Raise `SystemExit` where no network namespace can be made."""
    if missing := [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]:
        raise SystemExit(f"bench.tables needs {', '.join(missing)}. Install the packages util-linux and iproute2.")
    tried = subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False)  # noqa: S603
    if tried.returncode:
        raise SystemExit("bench.tables makes network namespaces, which was refused. Run it as root.")


def make_switch() -> None:
    """Make the switch, in the namespace of this process."""
    _call("ip", "link", "add", _SWITCH, "type", "bridge")
    _call("ip", "link", "set", _SWITCH, "up")


def connect(pid: int, rank: int) -> None:
    """Connect the namespace of process `pid` with the switch. Waits for the process to have one."""
    own, until = Path("/proc/self/ns/net").readlink(), time.monotonic() + _WAIT_S
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} has no network namespace of its own after {_WAIT_S:.0f} s")
        time.sleep(0.01)
    _call("ip", "link", "add", _port(rank), "type", "veth", "peer", "name", _LINK, "netns", str(pid))
    _call("ip", "link", "set", _port(rank), "master", _SWITCH, "up")


def join(rank: int) -> None:
    """Bring up the link of this rank, and have gloo use it."""
    until = time.monotonic() + _WAIT_S
    while f"{_LINK}:" not in Path("/proc/self/net/dev").read_text():
        if time.monotonic() > until:
            raise TimeoutError(f"rank {rank} was not connected within {_WAIT_S:.0f} s")
        time.sleep(0.01)
    _call("ip", "address", "add", f"10.99.0.{rank + 1}/24", "dev", _LINK)
    for name in ("lo", _LINK):
        _call("ip", "link", "set", name, "up")
    os.environ["GLOO_SOCKET_IFNAME"] = _LINK


def limit(rank: int, mbit: int) -> None:
    """Limit the link of this rank in both directions. 0 removes the limit."""
    switch = ("nsenter", "--target", str(os.getppid()), "--net")
    for prefix, device in (((), _LINK), (switch, _port(rank))):
        change = ("replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", _LATENCY)
        _call(*prefix, "tc", "qdisc", *(change if mbit else ("delete", "dev", device, "root")))


def sent_bytes() -> int:
    """Return the bytes that this rank has sent over its link, with the headers of TCP/IP and Ethernet."""
    return _sent(8)


def sent_packets() -> int:
    """Return the packets that this rank has sent over its link. The kernel joins packets of up to 64 kB."""
    return _sent(9)


def _sent(column: int) -> int:
    (line,) = (line for line in Path("/proc/self/net/dev").read_text().splitlines() if f"{_LINK}:" in line)
    return int(line.split(":")[1].split()[column])


def _port(rank: int) -> str:
    return f"port{rank}"


def _call(*words: str) -> None:
    subprocess.run(words, check=True)  # noqa: S603 - commands of this file
