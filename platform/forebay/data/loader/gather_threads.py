"""Threads that gather a batch together."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forebay.data.cache.builders.data_workers import num_gpus, usable_cores
from forebay.data.kernels import calls as kernels
from forebay.data.plan.order import PositionedRows
from forebay.errors import InvalidOption, LimitReached
from forebay.runtime.foreign_code import begin

_VARIABLE = "FOREBAY_GATHER_THREADS"
_MOST_THREADS = 8
"""On 16 cores of an H200, batches of 65,536 rows: 4.8, 8.5, 12.6 and 21.0 M rows/s with 1, 2, 4 and 8 threads."""
_LEAST_BYTES = 2 << 20
"""One thread gathers smaller batches in 1 ms. To wake others takes 0.05."""
_PARTS_PER_THREAD = 8

_LOCAL_RANKS = "LOCAL_WORLD_SIZE"
"""Ranks on this node, as torchrun and Ray Train say."""

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class GatherThreads:
    """Threads beside the gathering one, which calls all methods.

    They copy parts of a batch at memory speed and hold the GIL at no time. They start with the first batch of at least
    `least_bytes`, and wait for the next one.

    Args:
        number: Threads of a gather, with the one that calls. 1: no others.
        least_bytes: Smaller batches are gathered by the calling thread alone.
    """

    def __init__(self, number: int, least_bytes: int = _LEAST_BYTES) -> None:
        self._number, self._least_bytes = number, least_bytes
        if number > 1:
            kernels.load_divided()  # before the first thread
        self._state: Ints | None = None

    @classmethod
    def of_machine(cls, world_size: int = 1) -> GatherThreads:
        """Threads for half of the cores, at most eight.

        Divided among the ranks of this node.

        Or FOREBAY_GATHER_THREADS, for batches of any size.

        Raises:
            InvalidOption: The variable is not a whole number from 1.
        """
        given = os.environ.get(_VARIABLE)
        if given is None:
            return cls(max(1, min(_MOST_THREADS, int(usable_cores()) // 2 // local_ranks(world_size))))
        if not (given.isdecimal() and int(given)):
            raise InvalidOption(
                f"{_VARIABLE}={given!r} is not a number of threads. Give a whole number from 1, or unset it.",
                value=given,
            )
        return cls(int(given), least_bytes=0)

    def gather_arrays(self, buffer: Bytes, layout: Ints, bases: Words, slot_of: Ints, rows: PositionedRows) -> int:
        """Fill `buffer`, as `kernels.calls.gather_arrays`."""
        if not self._divides(buffer):
            return kernels.gather_arrays(buffer.ctypes.data, layout, bases, slot_of, rows.block, rows.row)
        state = self._shared(buffer, len(rows.row))
        missing: int = kernels.load_divided().gather_arrays(state, layout, bases, slot_of, rows.block, rows.row)
        return missing

    def gather_lists(self, buffer: Bytes, layout: Ints, lists: Ints) -> None:
        """Fill `buffer`, as `kernels.calls.gather_lists`."""
        if not self._divides(buffer):
            kernels.gather_lists(buffer.ctypes.data, layout, lists)
            return
        kernels.load_divided().gather_lists(self._shared(buffer, lists.shape[2]), layout, lists)

    def close(self) -> None:
        """End the threads.

        They may be used again, which starts new ones.
        """
        state, self._state = self._state, None
        if state is not None:
            kernels.load_divided().stop(state)

    def _divides(self, buffer: Bytes) -> bool:
        return self._number > 1 and buffer.nbytes >= self._least_bytes

    def _shared(self, buffer: Bytes, rows: int) -> Ints:
        """Prepare what the threads share for a gather into `buffer`.

        Starts them before the first one.
        """
        divided = kernels.load_divided()
        if self._state is None:
            self._state = np.zeros(divided.STATE_WORDS, dtype=np.int64)
            self._begin(self._state)
        self._state[divided.TARGET] = buffer.ctypes.data
        self._state[divided.PART_ROWS] = max(-(-rows // (_PARTS_PER_THREAD * self._number)), 1)
        return self._state

    def _begin(self, state: Ints) -> None:
        serve = partial(kernels.load_divided().serve, state)
        for number in range(1, self._number):
            with suppress(LimitReached):  # those that run do all
                begin(threading.Thread(target=serve, name=f"forebay-gather-{number}", daemon=True))


def local_ranks(world_size: int) -> int:
    """Ranks on this node.

    If the variable is not set, as many as it has GPUs. Without GPUs all of them may be here.
    """
    said = os.environ.get(_LOCAL_RANKS, "")
    if said.isdecimal() and int(said):
        return int(said)
    return min(world_size, num_gpus() or world_size)
