"""A pool that counts the bytes of its arrays.

For tests of what stays in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.memory.pool import MemoryPool


class CountingPool(MemoryPool):
    """Pool that counts the bytes of its arrays.

    Now and at most. It keeps none of them.
    """

    def __init__(self) -> None:
        super().__init__(kept_bytes=0)
        self.used_bytes = self.peak_bytes = 0

    def _memory(self, num_bytes: int) -> NDArray[np.uint8]:
        found = super()._memory(num_bytes)
        self.used_bytes += found.nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return found

    def _give_back(self, idle: Any, found: NDArray[np.uint8]) -> None:
        self.used_bytes -= found.nbytes
        super()._give_back(idle, found)
