"""Memory that a worker writes a commit into and the store of its node keeps: the bytes are never sent anywhere."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from forebay.train.pad import Pad
from forebay.train.sealed import Bytes

_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The slot a worker may write next: its number with the store, and the file that any process of the node opens."""

    number: int
    path: str


class Slot:
    """One piece of memory of a store, as large as the states that were written to it.

    Nothing has to be cleared away: on Linux it is a file without a name, which ends with the store and with those who
    have mapped it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._mapped = memoryview(b"")
        if sys.platform == "linux":
            self._file = os.memfd_create("forebay-commit")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="forebay-commit-")
            weakref.finalize(self, Path(self.path).unlink, missing_ok=True)
        weakref.finalize(self, os.close, self._file)

    @property
    def lease(self) -> Lease:
        """For the worker."""
        return Lease(number=self.number, path=self.path)

    def view(self, num_bytes: int) -> memoryview:
        """The first `num_bytes`, which somebody has written."""
        if len(self._mapped) < num_bytes:
            self._mapped = memoryview(mmap.mmap(self._file, num_bytes)).toreadonly()
        return self._mapped[:num_bytes]

    def fill(self, content: Bytes) -> memoryview:
        """Write `content` from this process; the view of it."""
        pad = SlotPad(self.path)
        pad.write(content)
        return self.view(len(content))


class SlotPad(Pad):
    """A slot, as the process sees it that writes a state into it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._file)
        if size := os.fstat(self._file).st_size:
            self._memory = memoryview(mmap.mmap(self._file, size))

    def grown(self, num_bytes: int) -> memoryview:
        """More of the same memory: what was written stays."""
        whole = -(-num_bytes // _STEP_BYTES) * _STEP_BYTES
        os.ftruncate(self._file, max(whole, os.fstat(self._file).st_size))
        return memoryview(mmap.mmap(self._file, whole))


def read_slot(path: str, num_bytes: int) -> memoryview:
    """What is in a slot, without a copy. Raises `OSError` when the store is gone."""
    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ))
