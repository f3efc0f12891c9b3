"""Use of this machine: CPU, memory, GPUs, disks and network, without a package."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forebay.events import MachineUse

_SECTOR_BYTES = 512
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Not disks, or made of disks that are counted themselves."""


class MachineMeter:
    """Reads counters of the kernel below `root`, and of NVIDIA's driver.

    In a container with limits, CPU and memory are shares of these. `with_gpus`: False asks no driver.
    """

    def __init__(self, *, with_gpus: bool, root: str = "/") -> None:
        self._root = Path(root)
        self._gpus = _Gpus() if with_gpus else None
        self._before = self._counters()

    def read(self) -> MachineUse:
        """Use since the last reading, or since the meter was made."""
        before, now = self._before, self._counters()
        self._before = now
        since = [late - early for early, late in zip(before, now, strict=True)]
        busy, all_s, seconds, *moved = since
        gpu, gpu_memory = self._gpus.read() if self._gpus else (math.nan, math.nan)
        cpu = min(max(busy / all_s, 0.0), 1.0) if all_s > 0 else math.nan
        rates = [max(each, 0.0) / seconds if seconds > 0 else math.nan for each in moved]
        return MachineUse(cpu, self._memory(), gpu, gpu_memory, *rates)

    def _counters(self) -> tuple[float, ...]:
        return (*self._cpu_times(), time.monotonic(), *self._disk_bytes(), *self._network_bytes())

    def _cpu_times(self) -> tuple[float, float]:
        """Busy seconds, and seconds of all cores."""
        quota = self._words("sys/fs/cgroup/cpu.max")
        if len(quota) == 2 and quota[0].isdecimal():
            stat = self._words("sys/fs/cgroup/cpu.stat")
            used_s = float(stat[stat.index("usage_usec") + 1]) / 1e6
            return used_s, time.monotonic() * int(quota[0]) / int(quota[1])
        # user nice system idle iowait irq softirq steal
        ticks = [float(each) for each in self._words("proc/stat")[1:9]]
        return (sum(ticks) - sum(ticks[3:5]), sum(ticks)) if len(ticks) == 8 else (math.nan, math.nan)

    def _memory(self) -> float:
        limit, used = self._words("sys/fs/cgroup/memory.max"), self._words("sys/fs/cgroup/memory.current")
        if limit and used and limit[0].isdecimal():
            stat = self._words("sys/fs/cgroup/memory.stat")
            # The kernel gives these pages of files back before it ends a process.
            given_back = float(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0.0
            return (float(used[0]) - given_back) / float(limit[0])
        words = self._words("proc/meminfo")
        if "MemAvailable:" not in words:
            return math.nan
        total, available = (float(words[words.index(name) + 1]) for name in ("MemTotal:", "MemAvailable:"))
        return 1 - available / total

    def _disk_bytes(self) -> tuple[float, float]:
        disks = self._names("sys/block")
        found = [line.split() for line in self._lines("proc/diskstats")]
        used = [each for each in found if each[2] in disks and not each[2].startswith(_VIRTUAL_DISKS)]
        return _SECTOR_BYTES * sum(float(each[5]) for each in used), _SECTOR_BYTES * sum(
            float(each[9]) for each in used
        )

    def _network_bytes(self) -> tuple[float, float]:
        found = [line.partition(":") for line in self._lines("proc/net/dev") if ":" in line]
        used = [rest.split() for name, _, rest in found if name.strip() != "lo"]
        return sum(float(each[0]) for each in used), sum(float(each[8]) for each in used)

    def _names(self, path: str) -> set[str]:
        with suppress(OSError):
            return {each.name for each in (self._root / path).iterdir()}
        return set()

    def _lines(self, path: str) -> list[str]:
        with suppress(OSError):
            return (self._root / path).read_text().splitlines()
        return []

    def _words(self, path: str) -> list[str]:
        return " ".join(self._lines(path)).split()


class _NvmlRates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Gpus:
    """GPUs of this machine, by the library that NVIDIA's driver brings."""

    def __init__(self) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._nvml.nvmlInit_v2() == 0:
            self._handles = list(self._found())

    def read(self) -> tuple[float, float]:
        """Share of the last second in which a kernel ran, and of the memory that is used: means over the GPUs."""
        busy, used = [], []
        for handle in self._handles:
            rates, memory = _NvmlRates(), _NvmlMemory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                busy.append(rates.gpu / 100)
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 and memory.total:
                used.append(memory.used / memory.total)
        return _mean(busy), _mean(used)

    def _found(self) -> Iterator[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for number in range(count.value):
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == 0:
                yield handle


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
