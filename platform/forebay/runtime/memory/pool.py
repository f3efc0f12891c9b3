"""Memory of large arrays and of batches.

It is reused once no array refers to it.

The system hands out memory page by page, each by a page fault, and clears it first. That costs more than what a cold
epoch then writes into it. glibc and Arrow's pool give the memory of a dropped block back within milliseconds.
See docs/internals/data-plane.md.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

_UNUSED_S = 2.0
"""Blocks follow each other faster than that. An epoch that has ended is followed by an evaluation, or by nothing."""
_PAGE_BYTES = 4096
_HUGE_PAGE_BYTES = 2 << 20
"""Large memory is asked for in huge pages: 6 MiB of them are ready in 0.4 ms instead of 2.0."""
_CLASSES_TRIED = 3
_LEAST_KEPT = 4
_ALIGNMENT = 64

_Memory: TypeAlias = NDArray[np.uint8]


class _Returned(NamedTuple):
    """Idle memory.

    With the time in seconds at which its last array was freed.
    """

    at: float
    memory: _Memory


_Idle: TypeAlias = dict[int, deque[_Returned]]


class MemoryPool:
    """A pool of memory for arrays.

    Memory returns to the pool when the last array made from it is freed, in any thread.

    Idle memory is kept up to `kept_bytes`, and is given back to the system if it was not used for 2 s. Sizes are
    rounded up by at most an eighth, so arrays that differ by a few rows use the same memory.
    """

    def __init__(self, *, kept_bytes: int) -> None:
        # Deques by size need no lock: an array may be freed at any time, even by the garbage collector inside `lease`.
        self._idle: _Idle = {}
        self._kept_bytes = kept_bytes
        self._keeps = True
        _trimmer.add(self)

    @property
    def idle_bytes(self) -> int:
        """Bytes that no array uses."""
        return sum(size * len(returned) for size, returned in list(self._idle.items()))

    @property
    def is_trimmed(self) -> bool:
        """Whether idle memory is given back to the system."""
        return True

    def lease(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a writable uint8 array [num_bytes].

        It has undefined content, at a multiple of 64 bytes.

        Raises `MemoryError`.
        """
        return np.asarray(_Lease(partial(self._give_back, self._idle), self._memory(num_bytes), num_bytes))

    def clear(self) -> None:
        """Free idle memory now, and the rest when it returns."""
        self._keeps = False
        self._idle.clear()

    def trim(self, unused_since: float) -> None:
        """Free memory that has been idle since `unused_since`.

        That is a time of `time.monotonic`.
        """
        for returned in list(self._idle.values()):
            while returned:
                try:
                    oldest = returned.popleft()
                except IndexError:  # a lease was faster
                    break
                if oldest.at > unused_since:
                    returned.appendleft(oldest)
                    break

    def leave_memory(self) -> None:
        """Forget the parent's idle memory, in a forked child.

        Both would keep a copy of what either of them writes.
        """
        self._idle.clear()

    def _memory(self, num_bytes: int) -> _Memory:
        size = smallest = _class_bytes(num_bytes)
        for _ in range(_CLASSES_TRIED):
            if returned := self._idle.get(size):
                try:
                    return returned.pop().memory
                except IndexError:  # another thread was faster
                    pass
            size = _class_bytes(size + 1)
        return self._fresh(smallest)

    def _fresh(self, num_bytes: int) -> _Memory:
        """Memory of the system."""
        # Not of malloc, which keeps some of what is freed. Private, or a forked child would write into it.
        try:
            mapped = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"an array needs {num_bytes} bytes of memory: {error}") from error
        if num_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel built without huge pages
                mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)

    def _has_room(self, num_bytes: int) -> bool:
        """Whether `num_bytes` more may be idle.

        Two threads may both use the last room: a little more does no harm.
        """
        return self.idle_bytes + num_bytes <= self._kept_bytes

    def _give_back(self, idle: _Idle, memory: _Memory) -> None:
        size = memory.nbytes
        if idle is self._idle and not (self._keeps and self._has_room(size)):
            return
        idle.setdefault(size, deque()).append(_Returned(time.monotonic(), memory))
        if self.is_trimmed:
            _trimmer.start()


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
        import torch  # noqa: PLC0415 - data workers and commands need none

        memory: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return memory

    def _has_room(self, num_bytes: int) -> bool:
        return super()._has_room(num_bytes) or self.idle_bytes + num_bytes <= _LEAST_KEPT * num_bytes


class _Lease:
    """Base object of all arrays in one piece of memory.

    Returns the memory when the last array is freed.
    """

    def __init__(self, give_back: Callable[[_Memory], None], memory: _Memory, num_bytes: int) -> None:
        self._give_back, self.memory = give_back, memory
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (num_bytes,),
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        self._give_back(self.memory)


def leased_memory(array: NDArray[Any]) -> _Memory | None:
    """Memory below the lease that an array holds. None for an array of no pool."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.memory if isinstance(base, _Lease) else None


class _Trimmer:
    """Thread that frees unused memory of all pools.

    It ends once nothing is idle.
    """

    def __init__(self) -> None:
        self._pools: weakref.WeakSet[MemoryPool] = weakref.WeakSet()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, pool: MemoryPool) -> None:
        with self._lock:
            self._pools.add(pool)

    def start(self) -> None:
        """Start the thread if it is not running.

        Callable at any time, such as by the garbage collector.
        """
        if self._is_running:
            return
        self._is_running = True
        # `threading.Thread.start` takes locks that the thread may hold which is interrupted by the end of an array.
        with suppress(RuntimeError):  # the process ends, or has as many threads as it may have
            start_new_thread(self._run, ())
            return
        self._is_running = False

    def leave_memory(self) -> None:
        """Make all pools leave the parent's memory, in a child."""
        self._reset()
        for pool in list(self._pools):
            pool.leave_memory()

    def _run(self) -> None:
        while self._has_idle():
            time.sleep(_UNUSED_S / 2)
            unused_since = time.monotonic() - _UNUSED_S
            for pool in self._trimmed():
                pool.trim(unused_since)
        self._is_running = False
        if self._has_idle():  # returned before the line above, by a thread that saw this one running
            self.start()

    def _has_idle(self) -> bool:
        return any(pool.idle_bytes for pool in self._trimmed())

    def _trimmed(self) -> list[MemoryPool]:
        with self._lock:
            return [pool for pool in self._pools if pool.is_trimmed]


def _class_bytes(num_bytes: int) -> int:
    """Size of the memory for `num_bytes`.

    There are eight sizes from each power of two to the next, in whole pages.
    """
    step = max(1 << max((num_bytes - 1).bit_length() - 4, 0), _PAGE_BYTES)
    return max(-(-num_bytes // step), 1) * step


_trimmer = _Trimmer()
os.register_at_fork(after_in_child=_trimmer.leave_memory)


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
