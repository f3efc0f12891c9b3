"""Exchange of tensors beyond all-reduce.

Every rank reduces one slice of all ranks' buffers (`all_to_all`), and all ranks receive the whole (`all_gather`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class TensorCollectives(Protocol):
    """Exchange of tensors between ranks.

    All ranks call every method in the same order.

    `all_to_all` and `all_gather` together move as much as a ring all-reduce: twice the buffer.
    """

    @property
    def world_size(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def all_to_all(self, buffers: Tensor) -> Tensor:
        """Return slice `rank` of every rank's buffers.

        Args:
            buffers: [m, world_size * n], m being the same on all ranks.

        Returns:
            [world_size, m, n], by rank.
        """
        ...

    def exchange(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int] | None = None
    ) -> tuple[Tensor, Sequence[int]]:
        """Send `send[r]` consecutive rows to each rank r.

        Args:
            rows: [sum of send, ...], with equal further dimensions and dtype on all ranks.
            send: Number of rows for each rank.
            receive: Number of rows from each rank, if all ranks know theirs. It saves a message.

        Returns:
            The received rows, by the rank that sent them, and their numbers.
        """
        ...

    def all_gather(self, part: Tensor) -> Tensor:
        """Return every rank's slice [n], by rank: [world_size * n]."""
        ...

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over ranks, bit-equal on all of them.

        May change `values`.
        """
        ...

    def broadcast(self, values: Tensor) -> None:
        """Copy rank 0's values into `values`."""


class TorchTensorCollectives:
    """`TensorCollectives` over the default process group.

    Gloo for CPU tensors, NCCL for GPUs.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def all_to_all(self, buffers: Tensor) -> Tensor:
        count, length = buffers.shape
        outgoing = buffers.view(count, self.world_size, -1).transpose(0, 1).contiguous()
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        return incoming.view(self.world_size, count, length // self.world_size)

    def exchange(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int] | None = None
    ) -> tuple[Tensor, Sequence[int]]:
        if receive is None:
            outgoing = torch.tensor(send, device=rows.device)
            incoming = torch.empty_like(outgoing)
            dist.all_to_all_single(incoming, outgoing)
            receive = incoming.tolist()
        received = rows.new_empty((sum(receive), *rows.shape[1:]))
        dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send))
        return received, receive

    def all_gather(self, part: Tensor) -> Tensor:
        whole = part.new_empty(self.world_size * len(part))
        dist.all_gather(list(whole.chunk(self.world_size)), part.contiguous())
        return whole

    def all_reduce(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def broadcast(self, values: Tensor) -> None:
        dist.broadcast(values, src=0)


class SingleProcessTensorCollectives:
    """`TensorCollectives` of a world of one."""

    rank, world_size = 0, 1

    def all_to_all(self, buffers: Tensor) -> Tensor:
        return buffers.unsqueeze(0)

    def exchange(
        self,
        rows: Tensor,
        send: Sequence[int],
        receive: Sequence[int] | None = None,  # noqa: ARG002 - equal to `send`
    ) -> tuple[Tensor, Sequence[int]]:
        return rows, send

    def all_gather(self, part: Tensor) -> Tensor:
        return part

    def all_reduce(self, values: Tensor) -> Tensor:
        return values

    def broadcast(self, values: Tensor) -> None:
        """Do nothing: there is one rank."""


def padded(buffer: Tensor, world_size: int) -> Tensor:
    """Pad `buffer` [n] with zeros to a multiple of `world_size`."""
    short = -len(buffer) % world_size
    return torch.nn.functional.pad(buffer, (0, short)) if short else buffer
