"""Reductions that Horovod's all-reduce does not offer, over Horovod: Adasum without MPI, and the exact mean."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

# As in `HorovodCollective`: every operation is over when its method returns, so its name may be used again.
_ALL_TO_ALL, _ALL_GATHER = "forebay/tensors/all_to_all", "forebay/tensors/all_gather"
_EXCHANGE = "forebay/tensors/exchange"
_ALL_REDUCE, _BROADCAST = "forebay/tensors/all_reduce", "forebay/tensors/broadcast"


class HorovodTensorCollectives:
    """`TensorCollectives` over Horovod's global process set. Every wait for other ranks is inside `patience`."""

    def __init__(self, patience: AbstractContextManager[object]) -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - an extra

        self._hvd: Any = hvd
        self._patience = patience
        self.rank: int = hvd.rank()
        self.world_size: int = hvd.size()

    def all_to_all(self, buffers: Tensor) -> Tensor:
        count, length = buffers.shape
        outgoing = buffers.view(count, self.world_size, -1).transpose(0, 1).contiguous()
        splits = torch.ones(self.world_size, dtype=torch.int32)  # of the first dimension: one slice for each rank
        with self._patience:
            incoming, _ = self._hvd.alltoall(outgoing, splits, name=_ALL_TO_ALL)
        received: Tensor = incoming.view(self.world_size, count, length // self.world_size)
        return received

    def exchange(
        self,
        rows: Tensor,
        send: Sequence[int],
        receive: Sequence[int] | None = None,  # noqa: ARG002 - it finds out
    ) -> tuple[Tensor, Sequence[int]]:
        with self._patience:
            received, counts = self._hvd.alltoall(
                rows.contiguous(), torch.tensor(send, dtype=torch.int32), name=_EXCHANGE
            )
        return received, counts.tolist()

    def all_gather(self, part: Tensor) -> Tensor:
        with self._patience:
            whole: Tensor = self._hvd.allgather(part.contiguous(), name=_ALL_GATHER)
        return whole

    def all_reduce(self, values: Tensor) -> Tensor:
        with self._patience:
            total: Tensor = self._hvd.allreduce(values, op=self._hvd.Sum, name=_ALL_REDUCE)
        return total

    def broadcast(self, values: Tensor) -> None:
        with self._patience:
            self._hvd.broadcast_(values, root_rank=0, name=_BROADCAST)
