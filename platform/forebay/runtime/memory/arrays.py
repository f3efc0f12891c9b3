"""Arrays of blocks, in memory of earlier ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from forebay.runtime.memory.pool import MemoryPool

_SMALL_BYTES = 64 << 10
"""Smaller arrays are made by NumPy: glibc keeps their memory anyway."""

array_pool = MemoryPool(kept_bytes=512 << 20)
"""Memory of `empty_array`, for all threads of this process."""


def empty_array(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array with undefined content, like `np.empty`.

    Large ones use memory of earlier ones.

    Raises `MemoryError`.
    """
    kind = np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if num_bytes < _SMALL_BYTES:
        return np.empty(shape, kind)
    return array_pool.lease(num_bytes).view(kind).reshape(shape)
