"""Lookup of one table on one rank.

Its ids on their way to owners, and its rows that wait for a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
