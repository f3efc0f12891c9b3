"""Reductions that no all-reduce offers: every rank reduces one slice of all ranks' buffers, and all get the whole."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class TensorCollectives(Protocol):
    """Traffic of `deal` and `collect` together is that of a ring all-reduce, twice the buffer. All ranks call alike."""

    @property
    def world_size(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def deal(self, buffers: Tensor) -> Tensor:
        """Slice `rank` of every rank's buffers.

        Args:
            buffers: [m, world_size * n], m being the same on all ranks.

        Returns:
            [world_size, m, n], by rank.
        """
        ...

    def collect(self, part: Tensor) -> Tensor:
        """Every rank's slice [n], by rank: [world_size * n]."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks, bit-equal on all of them; may be done in place."""
        ...

    def share(self, values: Tensor) -> None:
        """Make `values` those of rank 0, in place."""


class TorchTensorCollectives:
    """`TensorCollectives` over the default torch.distributed process group: gloo for CPU tensors, NCCL for GPUs."""

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def deal(self, buffers: Tensor) -> Tensor:
        count, length = buffers.shape
        outgoing = buffers.view(count, self.world_size, -1).transpose(0, 1).contiguous()
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        return incoming.view(self.world_size, count, length // self.world_size)

    def collect(self, part: Tensor) -> Tensor:
        whole = part.new_empty(self.world_size * len(part))
        dist.all_gather(list(whole.chunk(self.world_size)), part.contiguous())
        return whole

    def total(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def share(self, values: Tensor) -> None:
        dist.broadcast(values, src=0)


class SingleProcessTensorCollectives:
    """`TensorCollectives` of a world of one."""

    rank, world_size = 0, 1

    def deal(self, buffers: Tensor) -> Tensor:
        return buffers.unsqueeze(0)

    def collect(self, part: Tensor) -> Tensor:
        return part

    def total(self, values: Tensor) -> Tensor:
        return values

    def share(self, values: Tensor) -> None:
        """There is only one."""


def padded(buffer: Tensor, world_size: int) -> Tensor:
    """`buffer` [n] with zeros at its end, so that it falls into `world_size` slices."""
    short = -len(buffer) % world_size
    return torch.nn.functional.pad(buffer, (0, short)) if short else buffer
