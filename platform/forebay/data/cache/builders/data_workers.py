"""Limits and priority of data workers."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from forebay.data.cache.builders.reads_in_flight import ReadBounds
from forebay.data.transform.dataset import Dataset
from forebay.errors import InvalidOption, whole_number
from forebay.runtime.uris import has_local_name

NumReads: TypeAlias = int | Literal["auto"]
"""Number of row groups that are read at once. "auto": it follows the line to storage."""

CoreShare: TypeAlias = float | Literal["auto"]
"""Share of the cores. "auto": those that training leaves free."""

WORKERS_VARIABLE = "FOREBAY_DATA_WORKERS"
"""`threads` or `processes`: what builds blocks, whatever the number of cores."""
_SHARE_BESIDE_A_CPU_MODEL = 0.4
_CORES_OF_A_GPU = 2
"""Cores of a training process that feeds a GPU: its own thread, and the loader's."""
NICENESS = 10
"""A thread of niceness 10 gets a tenth of a contended core, and all of an idle one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkers:
    """Limits of data workers: concurrent reads and CPU cores.

    At most `max(1, round(core_share * cores))` of the cores this process may use decode and transform at once. "auto":
    0.4 of them, and on a machine with GPUs all but two for each GPU, if that is more. Meanwhile up to `num_reads`
    threads wait for storage or for the cache's disk, which takes no core. Memory is bounded by `num_reads` row groups,
    each as Parquet pages or as a block. "auto" chooses their number within `auto_reads`.

    >>> DataWorkers(core_share=0.4).num_cores(16), DataWorkers(core_share=0.4).num_cores(2)
    (6, 1)
    """

    core_share: CoreShare = "auto"
    num_reads: NumReads = "auto"
    auto_reads: ReadBounds = field(default_factory=ReadBounds)
    num_processes: int = 1
    """Processes among which "auto" is divided."""

    def __post_init__(self) -> None:
        number = isinstance(self.core_share, int | float) and not isinstance(self.core_share, bool)
        if self.core_share != "auto" and not (number and 0 < float(self.core_share) <= 1):
            raise InvalidOption(
                f"core_share={self.core_share!r}: give data workers a share of the cores above 0, up to 1, e.g. 0.4, "
                'or "auto".',
                core_share=self.core_share,
            )
        if isinstance(self.num_reads, str) and self.num_reads != "auto":
            raise InvalidOption(
                f'num_reads={self.num_reads!r}: give the number of row groups that are read at once, or "auto".',
                num_reads=self.num_reads,
            )
        if self.num_reads != "auto":
            object.__setattr__(self, "num_reads", whole_number("num_reads", self.num_reads, least=1))

    def for_local_files(self) -> DataWorkers:
        """Limits for files on a local disk.

        "auto" begins with one read a core, at least two, and grows with latency.

        Reads that wait for a core hold pages that leave its cache: 8 of them took 1.2 times the CPU time of 2.
        """
        start = max(2, self.num_cores())
        least = min(self.auto_reads.least, start)
        return replace(self, auto_reads=replace(self.auto_reads, start=start, least=least))

    def for_files_of(self, dataset: Dataset) -> DataWorkers:
        """Limits for `dataset`.

        `for_local_files`, if its files have local names.
        """
        is_local = len(dataset.manifest) > 0 and has_local_name(dataset.manifest[0].uri)
        return self.for_local_files() if is_local else self

    @property
    def read_bounds(self) -> ReadBounds:
        """Bounds on the number of concurrent reads."""
        if self.num_reads == "auto":
            return self.auto_reads
        return ReadBounds(start=self.num_reads, least=self.num_reads, most=self.num_reads)

    def num_cores(self, usable: float | None = None) -> int:
        """Number of cores that may be busy at once.

        A share of `usable` ones (default: those that this process may use).
        """
        cores = usable_cores() if usable is None else usable
        if self.core_share == "auto":
            return max(1, round(free_cores(cores, num_gpus()) / self.num_processes))
        return max(1, round(self.core_share * cores))

    def divided_by(self, num_processes: int) -> DataWorkers:
        """Limits of one of `num_processes` on a machine."""
        return DataWorkers(
            core_share="auto" if self.core_share == "auto" else self.core_share / num_processes,
            num_reads="auto" if self.num_reads == "auto" else -(-self.num_reads // num_processes),
            auto_reads=self.auto_reads.divided_by(num_processes),
            num_processes=self.num_processes * num_processes if self.core_share == "auto" else 1,
        )

    def times(self, factor: int) -> DataWorkers:
        """Limits of `factor` times as many workers.

        At most all cores. "auto" keeps its bounds: more reads are its own choice.
        """
        return replace(
            self,
            core_share=1.0 if self.core_share == "auto" else min(1.0, self.core_share * factor),
            num_reads="auto" if self.num_reads == "auto" else self.num_reads * factor,
        )


DEFAULT_WORKERS = DataWorkers()


def processes_for(num_cores: int) -> int:
    """Number of worker processes for `num_cores` busy cores, 0 for threads of this process.

    >>> processes_for(1)
    0
    """
    chosen = os.environ.get(WORKERS_VARIABLE)
    if chosen == "threads" or not sys.platform.startswith("linux"):
        return 0
    return num_cores if num_cores > 1 or chosen == "processes" else 0


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread permanently.

    Does nothing where the system cannot do so per thread.

    Measured against pinning threads to cores in docs/internals/data-plane.md.
    """
    if sys.platform == "linux":  # elsewhere niceness belongs to the process
        with suppress(OSError):  # some sandboxes forbid it
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def free_cores(cores: float, num_gpus: int) -> float:
    """Cores that training leaves free, of `cores`.

    >>> free_cores(2, 0), free_cores(16, 1), free_cores(4, 2)
    (0.8, 14, 1.6)
    """
    return max(_SHARE_BESIDE_A_CPU_MODEL * cores, cores - _CORES_OF_A_GPU * num_gpus if num_gpus else 0)


def num_gpus(devices: str = "/dev") -> int:
    """Number of NVIDIA GPUs of this machine or container.

    Not of this process: the actor of a node may use none, and works for trainers that do.
    """
    try:
        names = os.listdir(devices)  # noqa: PTH208 - names alone
    except OSError:  # not this system's, or no descriptor is left: numbers of threads depend on it, nothing else
        return 0
    return len([name for name in names if name.startswith("nvidia") and name.removeprefix("nvidia").isdecimal()])


def usable_cores(root: str = "/") -> float:
    """Number of cores that this process may use.

    Its affinity, or less under a cgroup quota (found below `root`).
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(allowed), *_quotas(Path(root))])


def _quotas(root: Path) -> list[float]:
    """CPU quotas of this process's cgroups, in cores.

    Version 2 or 1.
    """
    groups = root / "sys/fs/cgroup"
    found = [_quota(_words(groups / "cpu/cpu.cfs_quota_us") + _words(groups / "cpu/cpu.cfs_period_us"))]
    for line in _words(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            own = groups / line[len("0::/") :]
            folders = (own, *own.parents[: len(own.parts) - len(groups.parts)])
            found += [_quota(_words(folder / "cpu.max")) for folder in folders]
    return [cores for cores in found if cores is not None]


def _quota(words: list[str]) -> float | None:
    """Quota divided by its period.

    None without a quota, which is "max" or -1.
    """
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return None
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
