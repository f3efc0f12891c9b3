"""Lookup whose rows wait for a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
        """Gradient of `rows`. It is 0 before a backward pass has reached them."""
        return torch.zeros_like(self.rows) if self.rows.grad is None else self.rows.grad
