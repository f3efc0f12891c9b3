"""Main memory of this machine, and what is left of it."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def machine_bytes() -> int:
    """Main memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes(root: Path = Path("/")) -> float:
    """Memory that this process may still take.

    What the machine has left, or less under the limit of a cgroup.
    """
    facts = dict(line.split(":", 1) for line in _lines(root / "proc/meminfo"))
    left = [1024.0 * int(facts["MemAvailable"].split()[0])] if "MemAvailable" in facts else []
    groups = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found = groups / path.strip("/")
            left += [_left_in(each) for each in (found, *found.parents) if each.is_relative_to(groups)]
    return min(left, default=float("inf"))


def _left_in(group: Path) -> float:
    limit, used = _lines(group / "memory.max"), _lines(group / "memory.current")
    if not limit or not used or not limit[0].isdecimal():
        return float("inf")
    facts = dict(line.split() for line in _lines(group / "memory.stat"))
    return float(limit[0]) - float(used[0]) + float(facts.get("inactive_file", 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
