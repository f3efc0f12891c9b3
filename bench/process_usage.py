"""CPU time and memory of this process and all processes below it. Needs only the standard library, and Linux."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bench.process_counts import family

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """CPU seconds of all processes so far, with those that have ended and been waited for."""
    ticks = 0
    for pid in family():
        # proc(5): utime, stime, cutime and cstime are fields 14 to 17, and the name before them may hold spaces.
        fields = _text(pid, "stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


@dataclass(frozen=True)
class MemoryInUse:
    """Bytes of all processes: held by one alone, and held by several, each page once."""

    private_bytes: int
    shared_bytes: int
    num_processes: int


def memory_in_use() -> MemoryInUse:
    """Memory of all processes now. Pages of mapped files count, memory of the GPU does not."""
    private = proportional = 0
    pids = family()
    for pid in pids:
        for line in _text(pid, "smaps_rollup").splitlines():
            name, _, value = line.partition(":")
            if name in ("Private_Clean", "Private_Dirty"):
                private += int(value.split()[0]) << 10
            elif name == "Pss":  # a page that n processes hold counts as a part of n in each
                proportional += int(value.split()[0]) << 10
    return MemoryInUse(private, max(proportional - private, 0), len(pids))


def _text(pid: int, name: str) -> str:
    try:
        return Path("/proc", str(pid), name).read_text()
    except OSError:  # it has ended meanwhile
        return ""
