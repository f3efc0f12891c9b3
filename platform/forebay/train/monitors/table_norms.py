"""The norms of one embedding table, a slice at a time, kept on its device until they are asked for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

SLICE_NUMBERS = 1 << 18
"""Numbers of a table that one measurement sweeps over: 1 MiB of float32. A table of 1,000,000 x 32 takes 123."""

TOUCHED_ROWS = 512
"""At least as many of the rows the last batch looked up are measured, too: rows that run away are looked up often."""


class TableNorms:
    """One table: how far it has been swept, and the longest norm that was met; kept on its device."""

    def __init__(self, name: str, weight: Tensor, module: nn.Module | None) -> None:
        self.name, self._weight = name, weight
        self.num_rows = weight.shape[0]
        self._slice = max(SLICE_NUMBERS // weight.shape[1], 1)
        self.start(0)
        if module is not None:
            module.register_forward_pre_hook(self._look, with_kwargs=True)

    def start(self, row: int) -> None:
        """Sweep on from `row`, and know nothing else."""
        self.row = row % self.num_rows
        self.is_next = False
        self.is_measured = False
        self._looked_up: Tensor | None = None
        self._longest = torch.zeros((), device=self._weight.device)
        self._runaway = torch.zeros((), device=self._weight.device)
        self._runaway_before: Tensor | None = None

    @torch.no_grad()
    def measure(self, limit: float, turn: int) -> None:
        """One slice, and rows that were looked up, other ones at every `turn`; waits for no device."""
        norms = _norms(self._weight[self.row : self.row + self._slice])
        self._longest = torch.maximum(self._longest, norms.max())
        self._runaway = self._runaway + (norms > limit).sum()
        self.row += self._slice
        if self.row >= self.num_rows:
            self.row, self._runaway_before = 0, self._runaway
            self._runaway = torch.zeros_like(self._runaway)
        ids, self._looked_up = self._looked_up, None
        if ids is not None and ids.numel():
            self._longest = torch.maximum(self._longest, _norms(self._weight[_sample(ids, turn)]).max())
        self.is_measured = True

    def take(self) -> Tensor:
        """The longest norm since the last call, and the runaway rows of the newest full sweep, in a row of two."""
        runaway = self._runaway if self._runaway_before is None else self._runaway_before
        taken = torch.stack([self._longest, runaway])
        self._longest = torch.zeros_like(self._longest)
        self.is_measured = False
        return taken.cpu()

    @torch.no_grad()
    def measure_all(self, limit: float) -> tuple[float, int, int]:
        """The longest norm of the whole table, its row, and how many exceed `limit`."""
        longest, row, runaway = -1.0, 0, 0
        for start in range(0, self.num_rows, self._slice):
            norms = _norms(self._weight[start : start + self._slice])
            value, place = norms.max(dim=0)
            if value.item() > longest:
                longest, row = value.item(), start + int(place.item())
            runaway += int((norms > limit).sum().item())
        return longest, row, runaway

    def _look(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # In a compiled model this flag would be part of what is compiled: there, the sweep has to do.
        if self.is_next and module.training and not torch.compiler.is_compiling():
            self._looked_up = (args[0] if args else kwargs["input"]).detach()


def _sample(ids: Tensor, turn: int) -> Tensor:
    """Ids of all columns, whatever the shape (rows, ...) of what was looked up."""
    stride = max(ids.numel() // TOUCHED_ROWS, 1)
    # A stride that shares a factor with the width would meet the same few columns in every row.
    width = math.prod(ids.shape[1:])
    while math.gcd(stride, width) > 1:
        stride -= 1
    return ids.reshape(-1)[turn % stride :: stride]


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.detach(), dim=1, dtype=torch.float32)
    return norms
