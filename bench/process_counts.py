"""Counts of one epoch that do not depend on the speed of the machine: bytes, system calls, page faults, switches.

The kernel counts, for this process and all processes below it. Needs only the standard library, and Linux.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

_IO = {"rchar": "read_bytes", "wchar": "written_bytes", "syscr": "read_calls", "syscw": "write_calls"}
_SWITCHES = {"voluntary_ctxt_switches": "waits", "nonvoluntary_ctxt_switches": "preemptions"}

COUNTS: dict[str, str] = {
    "read_bytes": "bytes that system calls read, from the page cache or not; bytes of mapped files do not count",
    "written_bytes": "bytes that system calls wrote",
    "read_calls": "system calls that read",
    "write_calls": "system calls that wrote",
    "minor_faults": "page faults without reading a disk: memory and mapped pages that were touched for the first time",
    "major_faults": "page faults that read a disk",
    "waits": "context switches of threads that waited",
    "preemptions": "context switches of threads that lost their core, which depends on the load of the machine",
}
"""Name -> meaning of every count."""


def counts_now() -> dict[str, int]:
    """Each of `COUNTS` since the start of these processes. Leaves out what this system does not count.

    Processes that ended count with those that waited for them, except for their context switches.
    """
    below = _below()
    return _added(_own(), below)  # last: looking for processes reads some hundred files


def counts_since(earlier: Mapping[str, int]) -> dict[str, int]:
    """Counts since `earlier = counts_now()`. A process that was killed meanwhile takes its counts with it."""
    own = _own()
    return {name: max(amount - earlier.get(name, 0), 0) for name, amount in _added(own, _below()).items()}


def family() -> set[int]:
    """Ids of this process and of all processes below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        if fields := _text(f"{path.name}/stat").rpartition(")")[2].split():
            parents[int(path.name)] = int(fields[1])
    found = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def _own() -> dict[str, int]:
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "minor_faults": own.ru_minflt + ended.ru_minflt,
        "major_faults": own.ru_majflt + ended.ru_majflt,
        # Of this process alone, the threads that have ended count too.
        "waits": own.ru_nvcsw + ended.ru_nvcsw,
        "preemptions": own.ru_nivcsw + ended.ru_nivcsw,
    } | _named(_IO, [_text("self/io")])


def _below() -> dict[str, int]:
    sums: dict[str, int] = {}
    for pid in family() - {os.getpid()}:
        sums = _added(sums, _counts_of(pid))
    return sums


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _counts_of(pid: int) -> dict[str, int]:
    """Counts of another process. Empty if it has ended meanwhile."""
    # proc(5): minflt, cminflt, majflt and cmajflt are fields 10 to 13, and the name before them may hold spaces.
    fields = _text(f"{pid}/stat").rpartition(")")[2].split()
    if not fields:
        return {}
    minor, minor_ended, major, major_ended = map(int, fields[7:11])
    threads = [_text(f"{pid}/task/{path.name}/status") for path in Path(f"/proc/{pid}/task").glob("[0-9]*")]
    faults = {"minor_faults": minor + minor_ended, "major_faults": major + major_ended}
    return faults | _named(_SWITCHES, threads) | _named(_IO, [_text(f"{pid}/io")])


def _named(names: Mapping[str, str], texts: Iterable[str]) -> dict[str, int]:
    """Sum of the lines `name: number` of all texts, under our own names."""
    sums: dict[str, int] = {}
    for line in (line for text in texts for line in text.splitlines()):
        name, _, value = line.partition(":")
        if name in names:
            sums[names[name]] = sums.get(names[name], 0) + int(value)
    return sums


def _text(path: str) -> str:
    """Content of a file below /proc. Empty if there is none, or its process has ended."""
    try:
        return Path("/proc", path).read_text()
    except OSError:
        return ""
