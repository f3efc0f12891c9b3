"""Values of rank 0, broadcast to all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


def broadcast_values(model: nn.Module) -> None:
    """Broadcast parameters and buffers of rank 0."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def follow_statistics(model: nn.Module) -> None:
    """Make collected statistics follow rank 0, as under DDP.

    Such as running means of batch norm. In evaluation too: it is of the model that a checkpoint has.
    """
    if statistics := list(_statistics(model)):

        def broadcast_statistics(_module: nn.Module, _inputs: Any) -> None:
            for statistic in statistics:
                dist.broadcast(statistic, src=0)

        model.register_forward_pre_hook(broadcast_statistics)


def _statistics(model: nn.Module) -> Iterator[Tensor]:
    """Buffers that checkpoints save.

    Others are constants, such as tables of positions.
    """
    saved = model.state_dict().keys()
    return (buffer for name, buffer in model.named_buffers() if name in saved)
