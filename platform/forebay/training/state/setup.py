"""Objects that monitors and policies of a rank observe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from forebay.training.state.metric import Metric


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor.

    A tensor that is not sharded is returned itself.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _gradient(parameter: Tensor) -> Tensor | None:
    return None if parameter.grad is None else local_part(parameter.grad)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTable:
    """Rows of an embedding table on this rank.

    `weight()` is the newest [rows, dim], with the id of each row.

    `feature()` returns what the table looks up, as words, once that is known.
    """

    name: str
    weight: Callable[[], Tensor]
    id_of: Callable[[int], int]
    feature: Callable[[], str]

    def __str__(self) -> str:
        return f"{self.name!r} ({feature})" if (feature := self.feature()) else repr(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParts:
    """This rank's parts of values and reduced gradients.

    A gradient before a step, or None.

    `tables` are rows that are not parameters (`forebay.training.tables`). All ranks call `metrics` together before a
    checkpoint, for what all of them measured since the last one.
    """

    value: Callable[[Tensor], Tensor] = local_part
    gradient: Callable[[Tensor], Tensor | None] = _gradient
    tables: tuple[LocalTable, ...] = ()
    metrics: Callable[[], Mapping[str, Metric]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSetup:
    """Objects that monitors and policies observe on one rank.

    Attributes:
        model: The model on this rank's device, before it is wrapped.
        optimizer: Its optimizer.
        device: Device of model and batches.
        world_size: Number of ranks.
        parts: Where this rank's parts of parameters and gradients are.
    """

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    world_size: int
    parts: LocalParts = field(default_factory=LocalParts)
