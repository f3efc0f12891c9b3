"""Exchange of values between ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch

from forebay.training.collectives.tensor_collectives import SingleProcessTensorCollectives, TensorCollectives
from forebay.world import World

T = TypeVar("T")
V = TypeVar("V")


class Collective(Protocol):
    """Communication of one rank with all others.

    A driver builds one per worker process.

    Laws: all ranks call every method in the same order. No method changes its argument. `all_reduce`, `combine` and
    `broadcast_object` return the same on every rank.
    """

    @property
    def world(self) -> World: ...

    @property
    def device(self) -> torch.device:
        """Device of this rank's model and batches."""
        ...

    def tensor_collectives(self) -> TensorCollectives:
        """Exchange of tensors, for reductions over long buffers."""
        ...

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        """Sum over ranks, element-wise.

        In the same shape and dtype, int64 or float64.
        """
        ...

    def combine(self, value: V, decide: Callable[[Sequence[V]], T]) -> T:
        """Return `decide(values)` of every rank's `value`, by rank.

        `decide` is called on rank 0, or on every rank. So a rank receives its result and not all values, which are
        64 MB at a checkpoint of 4,096 ranks.
        """
        ...

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's `value`. Values of other ranks are ignored."""
        ...


class SingleProcessCollective:
    """`Collective` of a world of one."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.world = World()
        self.device = torch.device(device)

    def tensor_collectives(self) -> TensorCollectives:
        return SingleProcessTensorCollectives()

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def combine(self, value: V, decide: Callable[[Sequence[V]], T]) -> T:
        return decide([value])

    def broadcast_object(self, value: T) -> T:
        return value


Reduction = Literal["mean", "adasum", "exact"]
"""Rule by which the gradients of all ranks are combined."""
