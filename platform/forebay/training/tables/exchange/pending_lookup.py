"""Lookup of one table on one rank: its ids on their way to owners, and its rows that wait for a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RoutedIds:
    """What a lookup asks for, each row once: `asked` [n, ...] has the first `send[0]` for rank 0, and so on.

    `inverse` has the place in `asked` of each id that is looked up. `send` is empty if no rank is asked.
    """

    asked: Tensor
    send: Sequence[int]
    inverse: Tensor


@dataclass(slots=True)
class PendingLookup:
    """`rows` [n, dim] that this rank looked up, `send[r]` of them at rank r, in the order of ranks.

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
