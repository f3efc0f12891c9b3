"""Reductions that Horovod's all-reduce does not offer, over Horovod: Adasum without MPI, and the exact mean."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

# As in `HorovodCollective`: every operation is over when its method returns, so its name may be used again.
_DEAL, _COLLECT, _TOTAL, _SHARE = "forebay.deal", "forebay.collect", "forebay.total", "forebay.spread"


class HorovodTensorCollectives:
    """`Slices` over Horovod's global process set; it waits for other ranks within `patience`."""

    def __init__(self, patience: AbstractContextManager[object]) -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - an extra

        self._hvd: Any = hvd
        self._patience = patience
        self.rank: int = hvd.rank()
        self.world_size: int = hvd.size()

    def deal(self, buffers: Tensor) -> Tensor:
        count, length = buffers.shape
        outgoing = buffers.view(count, self.world_size, -1).transpose(0, 1).contiguous()
        splits = torch.ones(self.world_size, dtype=torch.int32)  # of the first dimension: one slice for each rank
        with self._patience:
            incoming, _ = self._hvd.alltoall(outgoing, splits, name=_DEAL)
        dealt: Tensor = incoming.view(self.world_size, count, length // self.world_size)
        return dealt

    def collect(self, part: Tensor) -> Tensor:
        with self._patience:
            whole: Tensor = self._hvd.allgather(part.contiguous(), name=_COLLECT)
        return whole

    def total(self, values: Tensor) -> Tensor:
        with self._patience:
            total: Tensor = self._hvd.allreduce(values, op=self._hvd.Sum, name=_TOTAL)
        return total

    def share(self, values: Tensor) -> None:
        with self._patience:
            self._hvd.broadcast_(values, root_rank=0, name=_SHARE)
