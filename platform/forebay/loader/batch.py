"""Rows of one rank in one global batch."""

from __future__ import annotations

from typing import Any

import torch


class Batch(dict[str, Any]):
    """Rows of this rank in one global batch: array name -> tensor [rows, ...] (NumPy arrays on request).

    Attributes:
        position: Position of the global batch in its epoch, in rows.
        size: Rows of the global batch, over all ranks.
        rows: Rows of this rank's part.
        weight: `rows * world size / size`. A mean loss over the part, times this weight, averaged over the ranks, is
            the exact mean over the global batch. 0 for the one dummy row that a rank with an empty part gets.
        epoch: Number of its epoch, from 0.
        ends_epoch: True for the last batch of its epoch.
    """

    def __init__(
        self, arrays: Any = (), *, position: int = 0, size: int = 0, rows: int = 0, weight: float = 1.0
    ) -> None:
        # Defaults, because torch rebuilds mappings that it moves between devices as type(batch)(items).
        super().__init__(arrays)
        self.position, self.size, self.rows, self.weight = position, size, rows, weight
        self.epoch = 0
        self.ends_epoch = False

    def to(self, device: torch.device | str) -> Batch:
        """Copy of the batch on a device. Copies from page-locked memory overlap with work of the host."""
        moved = {name: torch.as_tensor(array).to(device, non_blocking=True) for name, array in self.items()}
        batch = Batch(moved, position=self.position, size=self.size, rows=self.rows, weight=self.weight)
        batch.epoch, batch.ends_epoch = self.epoch, self.ends_epoch
        return batch

    def __repr__(self) -> str:
        shapes = {name: tuple(array.shape) for name, array in self.items()}
        return (
            f"Batch({shapes}, epoch={self.epoch}, position={self.position}, size={self.size}, weight={self.weight:g})"
        )
