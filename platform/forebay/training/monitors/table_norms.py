"""Norms of an embedding table, a slice at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from forebay.training.state.setup import LocalTable

SLICE_NUMBERS = 1 << 18
"""Numbers of a table per measurement: 1 MiB of float32. A table of 1,000,000 x 32 takes 123 measurements."""

TOUCHED_ROWS = 512
"""Minimum number of rows of the last batch that are measured too. Growing rows are looked up often."""


class TableNorms:
    """Sweep over one table, with its longest norm."""

    def __init__(self, name: str, weight: Tensor | LocalTable, module: nn.Module | None) -> None:
        self.name, self._source = name, weight
        self._device = self._weight.device
        self._slice = max(SLICE_NUMBERS // self._weight.shape[1], 1)
        self.start(0)
        if module is not None:
            module.register_forward_pre_hook(self._keep_ids, with_kwargs=True)

    def __str__(self) -> str:
        return str(self._source) if isinstance(self._source, LocalTable) else repr(self.name)

    @property
    def num_rows(self) -> int:
        """Number of rows on this rank."""
        return self._weight.shape[0]

    @property
    def _weight(self) -> Tensor:
        return self._source.weight() if isinstance(self._source, LocalTable) else self._source

    def start(self, row: int) -> None:
        """Continue the sweep from `row`, and discard all norms."""
        self.row = row % max(self.num_rows, 1)
        self.is_next = False
        self.is_measured = False
        self._looked_up: Tensor | None = None
        self._longest = torch.zeros((), device=self._device)
        self._runaway = torch.zeros((), device=self._device)
        self._runaway_before: Tensor | None = None

    @torch.no_grad()
    def measure(self, limit: float, turn: int) -> None:
        """Measure one slice and a sample of looked-up rows.

        Another slice at every `turn`.

        Never waits for the device.
        """
        weight = self._weight
        if not len(weight):
            return
        if self.row < len(weight):  # An open table may have lost rows since the last slice.
            norms = _norms(weight[self.row : self.row + self._slice])
            self._longest = torch.maximum(self._longest, norms.max())
            self._runaway = self._runaway + (norms > limit).sum()
            self.row += self._slice
        if self.row >= len(weight):
            self.row, self._runaway_before = 0, self._runaway
            self._runaway = torch.zeros_like(self._runaway)
        ids, self._looked_up = self._looked_up, None
        if ids is not None and ids.numel():
            self._longest = torch.maximum(self._longest, _norms(weight[_sample(ids, turn)]).max())
        self.is_measured = True

    def pop_norms(self) -> Tensor:
        """Return the longest norm and the number of runaway rows.

        Norm since the last call; rows of the newest full sweep. float32 [2].
        """
        runaway = self._runaway if self._runaway_before is None else self._runaway_before
        norms = torch.stack([self._longest, runaway])
        self._longest = torch.zeros_like(self._longest)
        self.is_measured = False
        return norms.cpu()

    @torch.no_grad()
    def measure_all(self, limit: float) -> tuple[float, int, int]:
        """Return the longest norm, its row's id, and rows above `limit`."""
        longest, row, runaway = -1.0, 0, 0
        for start in range(0, self.num_rows, self._slice):
            norms = _norms(self._weight[start : start + self._slice])
            value, place = norms.max(dim=0)
            if value.item() > longest:
                longest, row = value.item(), start + int(place.item())
            runaway += int((norms > limit).sum().item())
        return longest, self._source.id_of(row) if isinstance(self._source, LocalTable) else row, runaway

    def _keep_ids(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # In a compiled model this flag would be part of the compiled code. There the sweep is enough.
        if self.is_next and module.training and not torch.compiler.is_compiling():
            self._looked_up = (args[0] if args else kwargs["input"]).detach()


def _sample(ids: Tensor, turn: int) -> Tensor:
    """Return ids of all columns, for any shape."""
    stride = max(ids.numel() // TOUCHED_ROWS, 1)
    # A stride that shares a factor with the width would select the same few columns in every row.
    width = math.prod(ids.shape[1:])
    while math.gcd(stride, width) > 1:
        stride -= 1
    return ids.reshape(-1)[turn % stride :: stride]


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.detach(), dim=1, dtype=torch.float32)
    return norms
