"""Memory of batches, reused once no array or tensor refers to it."""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

_LEAST_KEPT = 4
_ALIGNMENT = 64
_page_locked: weakref.WeakSet[BufferPool] = weakref.WeakSet()


class BufferPool:
    """Pool of byte buffers. Each returns to the pool when the last array or tensor made from it is freed.

    A fresh buffer per batch costs more in page faults than the copy itself. `pinned` buffers (page-locked, for copies
    to a GPU) are even more expensive to make. Idle buffers are kept up to `kept_bytes`, and always a few.
    A forked child uses memory of its own.
    """

    def __init__(self, *, kept_bytes: int, pinned: bool = False) -> None:
        # A deque needs no lock: a lease may end in any thread, at any time, even in a forked child.
        self._idle: deque[torch.Tensor] = deque()
        self._kept_bytes = kept_bytes
        self._keeps = True
        self._pinned = pinned
        self._inherited: list[deque[torch.Tensor]] = []
        if pinned:
            _page_locked.add(self)

    def lease(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a writable uint8 array [num_bytes] with undefined content, 64-byte aligned."""
        return np.asarray(_Lease(partial(self._give_back, self._idle), self._memory(num_bytes), num_bytes))

    def lease_arrays(
        self, shapes: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
    ) -> tuple[dict[str, NDArray[np.generic]], int]:
        """Arrays of the given dtypes and shapes in one leased buffer, with undefined content, and its bytes."""
        sizes = {name: np.dtype(dtype).itemsize * math.prod(shape) for name, (dtype, shape) in shapes.items()}
        num_bytes = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes.values())
        buffer, end = self.lease(num_bytes), 0
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, (dtype, shape) in shapes.items():
            arrays[name] = buffer[end : end + sizes[name]].view(dtype).reshape(shape)
            end += -(-sizes[name] // _ALIGNMENT) * _ALIGNMENT
        return arrays, num_bytes

    def _memory(self, num_bytes: int) -> torch.Tensor:
        while self._idle:
            try:
                memory = self._idle.pop()
            except IndexError:
                break
            if memory.numel() >= num_bytes:
                return memory
        # A little more than requested: batches differ by a row, and the next epoch begins with the larger ones.
        return self._fresh(num_bytes + num_bytes // 16)

    def _fresh(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def leave_memory(self) -> None:
        """Use no page-locked memory in a forked child.

        The parent's pages are shared with it: without this, each writes into batches of the other. Only a process
        that may use the GPU can make or free such memory, so the parent's is kept.
        """
        self._inherited.append(self._idle)
        self._idle, self._pinned = deque(), False

    def clear(self) -> None:
        """Free idle buffers now, and buffers in use when they return."""
        self._keeps = False
        self._idle.clear()

    def _give_back(self, idle: deque[torch.Tensor], memory: torch.Tensor) -> None:
        if idle is not self._idle:
            idle.append(memory)
            return
        # Two threads may both find room for the last one. One too many does no harm.
        if not self._keeps:
            return
        if len(self._idle) < _LEAST_KEPT or (len(self._idle) + 1) * memory.numel() <= self._kept_bytes:
            self._idle.append(memory)


class _Lease:
    """Base object of every array made from one buffer. Returns the buffer when the last array is freed."""

    def __init__(self, give_back: Callable[[torch.Tensor], None], memory: torch.Tensor, num_bytes: int) -> None:
        self._give_back, self._memory = give_back, memory
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (num_bytes,),
            "data": (memory.data_ptr(), False),
        }

    def __del__(self) -> None:
        self._give_back(self._memory)


def _leave_memory() -> None:
    for pool in list(_page_locked):
        pool.leave_memory()


os.register_at_fork(after_in_child=_leave_memory)
