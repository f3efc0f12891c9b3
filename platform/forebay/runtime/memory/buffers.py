"""Memory of batches.

It is reused once no array or tensor refers to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from forebay.runtime.memory.pool import MemoryPool

_LEAST_KEPT = 4
_ALIGNMENT = 64


class BufferPool(MemoryPool):
    """Memory of the batches of one loader.

    A fresh buffer per batch costs more in page faults than the copy itself. `pinned` buffers (page-locked, for copies
    to a GPU) are even more expensive to make, so those are kept however long a step takes. Idle buffers are kept up to
    `kept_bytes`, and always a few.
    A forked child uses memory of its own.
    """

    def __init__(self, *, kept_bytes: int, pinned: bool = False) -> None:
        super().__init__(kept_bytes=kept_bytes)
        self._pinned = pinned
        self._inherited: list[object] = []

    @property
    def is_trimmed(self) -> bool:
        """Whether idle memory is given back to the system."""
        return not self._pinned

    def lease_arrays(
        self, shapes: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
    ) -> tuple[dict[str, NDArray[np.generic]], int]:
        """Return arrays in one leased buffer, and its bytes.

        They have the given dtypes and shapes, and undefined content.
        """
        sizes = {name: np.dtype(dtype).itemsize * math.prod(shape) for name, (dtype, shape) in shapes.items()}
        num_bytes = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes.values())
        buffer, end = self.lease(num_bytes), 0
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, (dtype, shape) in shapes.items():
            arrays[name] = buffer[end : end + sizes[name]].view(dtype).reshape(shape)
            end += -(-sizes[name] // _ALIGNMENT) * _ALIGNMENT
        return arrays, num_bytes

    def leave_memory(self) -> None:
        """Use no page-locked memory in a forked child.

        The parent's pages are shared with it: without this, each writes into batches of the other. Only a process
        that may use the GPU can make or free such memory, so the parent's is kept.
        """
        if not self._pinned:
            super().leave_memory()
            return
        self._inherited.append(self._idle)
        self._idle, self._pinned = {}, False

    def _fresh(self, num_bytes: int) -> NDArray[np.uint8]:
        if not self._pinned:
            return super()._fresh(num_bytes)
        memory: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return memory

    def _has_room(self, num_bytes: int) -> bool:
        return super()._has_room(num_bytes) or self.idle_bytes + num_bytes <= _LEAST_KEPT * num_bytes
