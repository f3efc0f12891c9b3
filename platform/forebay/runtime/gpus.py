"""GPUs that this process may use, and their number elsewhere.

The one place that asks PyTorch whether there are any. Everything else asks the device that it was given.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Folder of NVIDIA's kernel driver, with an entry for each GPU of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSupply:
    """GPUs at a place, node by node.

    Attributes:
        place: Name of the place in messages: "this machine" or "the cluster".
        nodes: Number of GPUs of each node.
        grows: Whether nodes may join later.
        unseen: GPUs of this machine that PyTorch cannot use.
    """

    place: str
    nodes: tuple[float, ...]
    grows: bool = False
    unseen: int = 0

    @property
    def total(self) -> float:
        """Number of GPUs of all nodes."""
        return sum(self.nodes)

    def room(self, gpus: float) -> int:
        """Number of processes that get `gpus` GPUs each, of one node."""
        return sum(int(each / gpus + 1e-9) for each in self.nodes)


def num_gpus() -> int:
    """Count the GPUs that PyTorch finds in this process.

    Opens no CUDA context. With CUDA a process can still fork afterwards: the driver's library is only asked.
    """
    import torch  # noqa: PLC0415 - seconds, which processes that only count nodes need not pay

    return torch.cuda.device_count()


def gpu_memory() -> int | None:
    """Bytes of the first GPU of this process, or None without one."""
    if not num_gpus():
        return None
    import torch  # noqa: PLC0415 - as above

    return int(torch.cuda.get_device_properties(0).total_memory)


def gpus_here() -> GpuSupply:
    """GPUs of this machine that this process may use."""
    found = num_gpus()
    return GpuSupply(place="this machine", nodes=(float(found),), unseen=0 if found else _unseen())


def _unseen() -> int:
    """GPUs that the kernel has and PyTorch does not find.

    0 where the user has hidden them.
    """
    if VISIBLE in os.environ or not _NVIDIA.is_dir():
        return 0
    return len(list(_NVIDIA.iterdir()))
