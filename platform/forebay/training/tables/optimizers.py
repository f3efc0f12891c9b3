"""Optimizers of table rows.

Each changes only the rows that got a gradient, on the rank that owns them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from forebay.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class RowOptimizer(ABC):
    """Optimizer of the rows of a table.

    A row is touched in a step if its gradient, summed over the global batch, is not zero. Other rows and their state
    stay as they are, up to `weight_decay`: it multiplies every row by `1 - lr * weight_decay` in every step, as
    `torch.optim.AdamW` does. Untouched rows catch up when they are read. Neither depends on the world size.

    `lr` follows the first group of the model's optimizer: when a scheduler or `Job.rate` halves that one, it is halved.

    Raises `InvalidOption` for a rate or a decay below 0.
    """

    lr: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for option in ("lr", "weight_decay"):
            value = getattr(self, option)
            if not 0 <= value < math.inf:
                raise InvalidOption(f"{type(self).__name__}({option}={value!r}): give a finite number of 0 or more.")

    @property
    @abstractmethod
    def moments(self) -> Mapping[str, bool]:
        """State names: True per element, False per row."""

    @abstractmethod
    def change(self, gradient: Tensor, state: Mapping[str, Tensor], *, step: int, lr: float) -> Tensor:
        """Return the change to subtract from rows.

        `gradient` is [n, dim]. Changes `state` in place.

        `step` counts from 1.
        """

    def state_bytes(self, dim: int) -> int:
        """Return the bytes of state of one row."""
        numbers = sum(dim if per_element else 1 for per_element in self.moments.values())
        return 4 * numbers + (8 if self.weight_decay else 0)


@dataclass(frozen=True, kw_only=True)
class RowSGD(RowOptimizer):
    """Gradient descent without momentum, and without state."""

    @property
    def moments(self) -> Mapping[str, bool]:
        return {}

    def change(self, gradient: Tensor, state: Mapping[str, Tensor], *, step: int, lr: float) -> Tensor:  # noqa: ARG002
        return gradient * lr


@dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(RowOptimizer):
    """Adagrad with one number of state per row.

    It is the sum of the mean squares of the row's gradients.

    The usual optimizer of large tables (FBGEMM's `EXACT_ROWWISE_ADAGRAD`, Naumov et al. 2019, "DLRM", arXiv
    1906.00091).
    """

    eps: float = 1e-10

    @property
    def moments(self) -> Mapping[str, bool]:
        return {"sum": False}

    def change(self, gradient: Tensor, state: Mapping[str, Tensor], *, step: int, lr: float) -> Tensor:  # noqa: ARG002
        total = state["sum"].add_(gradient.square().mean(1))
        return gradient * (lr / (total.sqrt() + self.eps)).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class LazyAdam(RowOptimizer):
    """Adam whose moments change only with their row.

    As in `torch.optim.SparseAdam`.

    It has two numbers per element.

    The bias correction counts the steps of the run.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def moments(self) -> Mapping[str, bool]:
        return {"exp_avg": True, "exp_avg_sq": True}

    def change(self, gradient: Tensor, state: Mapping[str, Tensor], *, step: int, lr: float) -> Tensor:
        beta1, beta2 = self.betas
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        return size * mean / square.sqrt().add_(self.eps)
