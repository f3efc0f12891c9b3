"""Memory that a worker writes a commit into and the store of its node keeps: the bytes are never sent anywhere."""

from __future__ import annotations

import mmap
import os
import select
import sys
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.encoded import Bytes, EncodedCheckpoint, facts_of

SEAL_BYTES = 1 << 16
"""Room for the seal, in front of the state: its length, which is written last, and the seal itself."""
_LENGTH_BYTES = 8
_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHandle:
    """The slot a worker may write next: its number with the store, and the file that any process of the node opens.

    `pid` is the store's process.
    """

    number: int
    path: str
    pid: int


class SharedBuffer:
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
    def lease(self) -> BufferHandle:
        """For the worker."""
        return BufferHandle(number=self.number, path=self.path, pid=os.getpid())

    def view(self, num_bytes: int) -> memoryview:
        """The first `num_bytes` of the state that somebody has written."""
        if len(self._mapped) < num_bytes:
            self._mapped = memoryview(mmap.mmap(self._file, SEAL_BYTES + num_bytes)).toreadonly()[SEAL_BYTES:]
        return self._mapped[:num_bytes]

    def clear(self) -> None:
        """Begin a lease, or a copy: the seal that is there is of an earlier one."""
        os.pwrite(self._file, bytes(_LENGTH_BYTES), 0)

    def sealed(self) -> EncodedCheckpoint | None:
        """What a worker has written, with its seal; None as long as there is none. Raises `TornError`."""
        length = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
        if length == 0:
            return None
        facts = facts_of(os.pread(self._file, length, _LENGTH_BYTES))
        return EncodedCheckpoint(facts=facts, state=self.view(facts["state_bytes"]))

    def fill(self, content: Bytes) -> memoryview:
        """Write `content` from this process; the view of it."""
        pad = SharedBufferWriter(self.path)
        pad.write(content)
        return self.view(len(content))


class SharedBufferWriter(ReusableBuffer):
    """A slot, as the process sees it that writes a state into it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._file)
        if (size := os.fstat(self._file).st_size) > SEAL_BYTES:
            self._memory = memoryview(mmap.mmap(self._file, size))[SEAL_BYTES:]

    def grown(self, num_bytes: int) -> memoryview:
        """More of the same memory: what was written stays."""
        whole = SEAL_BYTES + -(-num_bytes // _STEP_BYTES) * _STEP_BYTES
        os.ftruncate(self._file, max(whole, os.fstat(self._file).st_size))
        return memoryview(mmap.mmap(self._file, whole))[SEAL_BYTES:]

    def seal(self, sealed: EncodedCheckpoint) -> None:
        """Add the seal of what was written: it is a whole commit now, whatever becomes of this process."""
        seal = sealed.seal
        assert len(seal) <= SEAL_BYTES - _LENGTH_BYTES, "facts are few"
        os.pwrite(self._file, seal, _LENGTH_BYTES)
        # Last: without it nothing is there.
        os.pwrite(self._file, len(seal).to_bytes(_LENGTH_BYTES, "little"), 0)


class SharedBufferClient:
    """Where a worker writes: the slots of one store, which is process `pid`. Raises `OSError` when that has ended."""

    def __init__(self, pid: int) -> None:
        self._pads: dict[int, SharedBufferWriter] = {}
        self._life: select.poll | None = None
        if (process := _opened(pid)) is not None:
            weakref.finalize(self, os.close, process)
            self._life = select.poll()
            self._life.register(process, select.POLLIN)

    @property
    def is_alive(self) -> bool:
        """Whether the store's process surely lives; never where the system cannot tell."""
        return self._life is not None and not self._life.poll(0)

    def pad(self, lease: BufferHandle) -> SharedBufferWriter:
        """The slot, to write into. Raises `OSError` when the store has ended."""
        if lease.number not in self._pads:
            self._pads[lease.number] = SharedBufferWriter(lease.path)
        return self._pads[lease.number]


def _opened(pid: int) -> int | None:
    """Readable once the process has ended; None where the system has no such thing, or forbids it."""
    if not hasattr(os, "pidfd_open"):  # some builds of Python for Linux lack it, too
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def read_slot(path: str, num_bytes: int) -> memoryview:
    """What is in a slot, without a copy. Raises `OSError` when the store is gone."""
    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), SEAL_BYTES + num_bytes, access=mmap.ACCESS_READ))[SEAL_BYTES:]
