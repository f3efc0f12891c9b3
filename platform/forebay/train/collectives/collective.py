"""The few things workers do together, and the one who is alone."""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

import numpy as np
import torch

from forebay.train.collectives.tensor_collectives import SingleProcessTensorCollectives, TensorCollectives
from forebay.world import World

T = TypeVar("T")


class Collective(Protocol):
    """The ranks of a run as one: built by a driver, once per worker process.

    Laws: every method is called by all ranks in the same order; none changes its argument; `sum`, `gather` and `share`
    give every rank the same answer.
    """

    @property
    def world(self) -> World: ...

    @property
    def device(self) -> torch.device:
        """Where this rank's model and batches live."""
        ...

    def slices(self) -> TensorCollectives:
        """How ranks exchange parts of long buffers."""
        ...

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over ranks; same shape and dtype (int64 or float64)."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, by rank."""
        ...

    def share(self, value: T) -> T:
        """Rank 0's `value`; what the other ranks pass is ignored."""
        ...


class SingleProcessCollective:
    """A world of one: nothing to agree on."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.world = World()
        self.device = torch.device(device)

    def slices(self) -> TensorCollectives:
        return SingleProcessTensorCollectives()

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def gather(self, value: T) -> list[T]:
        return [value]

    def share(self, value: T) -> T:
        return value


Reduction = Literal["mean", "adasum", "exact"]
"""How the gradients of all ranks become one."""
