"""Lookups of one table on one rank.

Their ids on the way to owners, and their rows that wait for a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

GradientT = TypeVar("GradientT")


@dataclass(frozen=True, slots=True)
class RoutedIds:
    """Rows that a lookup asks for, each once.

    `asked` [n, ...] is in the order of ranks, `send[r]` for rank r.

    `inverse` has the position in `asked` of each id that is looked up. `send` is empty if no rank is asked.
    """

    asked: Tensor
    send: Sequence[int]
    inverse: Tensor


@dataclass(slots=True)
class PendingLookup:
    """Rows [n, dim] that this rank looked up.

    In the order of ranks, `send[r]` of them at rank r.

    `asked` is what all ranks asked this one for, `receive[r]` of it by rank r.
    """

    rows: Tensor
    asked: Tensor
    send: Sequence[int]
    receive: Sequence[int]

    @property
    def gradient(self) -> Tensor:
        """Gradient of `rows`.

        It is 0 before a backward pass has reached them.
        """
        return torch.zeros_like(self.rows) if self.rows.grad is None else self.rows.grad


class PendingLookups(Generic[GradientT]):
    """Lookups of a table since its last update, with their gradient."""

    def __init__(self) -> None:
        self._pending: list[PendingLookup] = []
        self._due: GradientT | None = None

    def add_pending(self, lookup: PendingLookup) -> None:
        """Have the next update use the gradient of a lookup."""
        self._pending.append(lookup)

    @property
    def is_reduced(self) -> bool:
        """Whether gradients since the last update are summed."""
        return self._due is not None

    def pop_pending(self) -> list[PendingLookup]:
        """Return the lookups since the last update, and forget them."""
        pending, self._pending = self._pending, []
        return pending

    def discard(self) -> None:
        """Forget all lookups and gradients since the last update."""
        self._pending, self._due = [], None

    def zero_grad(self) -> None:
        """Forget all gradients since the last update.

        Lookups wait for another one: their backward may be to come.
        """
        self._due = None
        for each in self._pending:
            each.rows.grad = None
