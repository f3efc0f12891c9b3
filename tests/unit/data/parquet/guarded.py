"""Memory in front of a protected page, for compiled loops that must not touch any other."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

needs_protection = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mprotect"), reason="needs POSIX memory protection"
)


class Guarded:
    """Memory that ends where a protected page begins: reading or writing behind the end is a SIGSEGV."""

    def __init__(self, num_bytes: int) -> None:
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size + mmap.PAGESIZE)
        whole = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(whole.ctypes.data + size)
        assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0, ctypes.get_errno()
        self.array = whole[size - num_bytes : size]
