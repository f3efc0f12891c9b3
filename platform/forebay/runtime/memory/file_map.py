"""Memory maps of files that are unmapped without the GIL."""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class FileMap:
    """A whole file in `memory`, mapped by Arrow to be read."""

    memory: pa.Buffer

    def drop_pages(self) -> None:
        """Unmap the pages, which a later read maps again.

        Arrow frees a map with the GIL held: 85 us for 6 MB, in which a trainer stands. Without pages it takes 6.
        """
        if sys.platform == "linux":  # elsewhere the advice means other things
            _madvise()(self.memory.address, self.memory.size, mmap.MADV_DONTNEED)


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise  # a call by ctypes leaves the GIL
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
