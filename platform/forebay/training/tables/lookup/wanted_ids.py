"""Ids of a lookup whose rows are needed, and the result that is made of their rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forebay.training.tables.lookup.bags import Bags


@dataclass(frozen=True, slots=True)
class WantedIds:
    """`ids` [n], which are at some `places` [n] of all ids of the lookup, or at all of them. `shape` is that of all."""

    ids: Tensor
    places: Tensor | None
    bags: Bags | None
    shape: torch.Size

    def result(self, rows: Tensor) -> Tensor:
        """Return the rows [*shape, dim] or the bags [bags, dim] of a lookup whose wanted ids have `rows` [n, dim]."""
        if self.bags is not None:
            return self.bags.pooled(rows, self.places)
        if self.places is not None:
            rows = rows.new_zeros(self.shape.numel(), rows.shape[1]).index_copy(0, self.places, rows)
        return rows.view(*self.shape, rows.shape[1])
