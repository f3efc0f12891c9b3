"""Private memory and CPU time of a process and its descendants, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def family(root: int | None = None) -> list[int]:
    """Process ids of `root` (by default this process) and all its descendants, `root` first."""
    own = os.getpid() if root is None else root
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of a process, in brackets, may contain anything.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # The process has just ended.
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [own]
    for pid in found:
        found += children.get(pid, [])
    return found


def private_bytes(pid: int) -> int:
    """Written memory that only this process holds. Mapped files and pages shared since a fork do not count."""
    return _rollup(pid, "Private_Dirty")


def used_bytes(pids: Iterable[int]) -> int:
    """Memory that processes use together, without mapped files. What several share counts once."""
    return sum(_rollup(pid, "Pss_Anon", "Pss_Shmem") for pid in pids)


def _rollup(pid: int, *names: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # The process has just ended.
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in names)


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the processes, and of their children that have ended, so far."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total * _TICK_S
