"""Memory that a worker writes and its node's store keeps.

The bytes of a checkpoint are never sent.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.encoded import (
    Bytes,
    EncodedCheckpoint,
    Metadata,
    PartFacts,
    parse_metadata,
    part_facts,
    split_shards,
    whole_sizes,
)

METADATA_ROOM = 1 << 16
"""Bytes before the shards: the metadata's length, which is written last, and the metadata."""
_LENGTH_BYTES = 8
_TAKEN_AT = METADATA_ROOM - 1
_STEP_BYTES = 1 << 20
_TOUCHED_BYTES = 64 << 20
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Linux only


def can_outlive() -> bool:
    """Whether two processes may share memory without a file name."""
    return sys.platform == "linux" and bool(sys.executable)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHandle:
    """Buffer that a worker may write next.

    It has its number in the store, and a file that any process of the node can open.

    `pid` is the store's process.
    """

    number: int
    path: str
    pid: int


class SharedBuffer:
    """Memory of a store.

    It is as large as the largest checkpoint written to it.

    It needs no clean-up. On Linux it is a file without a name, which ends with the store and the processes that have
    mapped it.
    """

    def __init__(self, number: int, descriptor: int | None = None) -> None:
        """Make a buffer, or use the one behind an inherited descriptor."""
        self.number = number
        self._mapped = memoryview(b"")
        if sys.platform == "linux":
            self._file = os.memfd_create("forebay-checkpoint") if descriptor is None else descriptor
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="forebay-checkpoint-")
            weakref.finalize(self, Path(self.path).unlink, missing_ok=True)
        weakref.finalize(self, os.close, self._file)

    @property
    def descriptor(self) -> int:
        """Descriptor of the file."""
        return self._file

    @property
    def handle(self) -> BufferHandle:
        """Handle for the worker."""
        return BufferHandle(number=self.number, path=self.path, pid=os.getpid())

    def clear(self) -> None:
        """Prepare for a new writer.

        The present metadata belongs to an earlier checkpoint.
        """
        os.pwrite(self._file, bytes(_LENGTH_BYTES), 0)
        os.pwrite(self._file, b"\0", _TAKEN_AT)

    def take(self) -> None:
        """Mark it as read by another process, until that clears it."""
        os.pwrite(self._file, b"\1", _TAKEN_AT)

    @property
    def is_taken(self) -> bool:
        """Whether another process reads it."""
        return os.pread(self._file, 1, _TAKEN_AT) == b"\1"

    def part(self, step: int, facts: PartFacts) -> memoryview | None:
        """Bytes of a part, without a copy. None if another or none is here.

        A part's metadata names no whole shard. Raises `CorruptCheckpoint`.
        """
        found = self.read()
        if found is None or found.shards or found.step != step or part_facts(found.metadata).get(facts.number) != facts:
            return None
        return self.view(facts.num_bytes)

    def read(self) -> EncodedCheckpoint | None:
        """Return a worker's checkpoint without a copy.

        None without metadata. Raises `CorruptCheckpoint`.
        """
        length = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
        if length == 0:
            return None
        metadata = parse_metadata(os.pread(self._file, length, _LENGTH_BYTES))
        return EncodedCheckpoint(metadata=metadata, shards=self._shards(metadata))

    def fill(self, metadata: Metadata, shards: Mapping[int, Bytes]) -> EncodedCheckpoint:
        """Copy all shards of a checkpoint into the buffer.

        Returns views of them there.
        """
        writer = SharedBufferWriter(self.path)
        for number in whole_sizes(metadata):
            writer.write(shards[number])
        return EncodedCheckpoint(metadata=metadata, shards=self._shards(metadata))

    def view(self, num_bytes: int) -> memoryview:
        """First `num_bytes` bytes after the space for metadata.

        They were written before. Without a copy.
        """
        if len(self._mapped) < num_bytes:
            self._mapped = memoryview(mmap.mmap(self._file, METADATA_ROOM + num_bytes)).toreadonly()[METADATA_ROOM:]
        return self._mapped[:num_bytes]

    def _shards(self, metadata: Metadata) -> dict[int, memoryview]:
        return split_shards(metadata, self.view(sum(whole_sizes(metadata).values())))


class SharedBufferWriter(ReusableBuffer):
    """A shared buffer in the process that writes it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._file)
        if (size := os.fstat(self._file).st_size) > METADATA_ROOM:
            # Its pages at once: by faults during the first copy, 256 MB take 0.1 s instead of 0.06.
            self._memory = memoryview(mmap.mmap(self._file, size, flags=mmap.MAP_SHARED | _POPULATE))[METADATA_ROOM:]

    def grow(self, num_bytes: int) -> memoryview:
        """Extend the same memory. Written data stays."""
        whole = METADATA_ROOM + -(-num_bytes // _STEP_BYTES) * _STEP_BYTES
        os.ftruncate(self._file, max(whole, os.fstat(self._file).st_size))
        return memoryview(mmap.mmap(self._file, whole))[METADATA_ROOM:]

    def touch(self, num_bytes: int) -> None:
        """Make memory for a checkpoint of about `num_bytes`.

        The first touch of a page takes several times as long as a copy into it. Releases the GIL.
        """
        if self.capacity < num_bytes:
            self.reserve(num_bytes + num_bytes // 16)
            for begin in range(0, self.capacity, _TOUCHED_BYTES):
                np.frombuffer(self.window(begin, _TOUCHED_BYTES), np.uint8).fill(0)

    def finish(self, encoded: EncodedCheckpoint) -> None:
        """Add the metadata of the written shards. A draft will do.

        Then the checkpoint is complete, even if this process dies.
        """
        metadata = encoded.metadata_bytes
        assert len(metadata) < METADATA_ROOM - _LENGTH_BYTES, "a checkpoint has at most some hundred shards"
        os.pwrite(self._file, metadata, _LENGTH_BYTES)
        # Last: without its length there is no metadata.
        os.pwrite(self._file, len(metadata).to_bytes(_LENGTH_BYTES, "little"), 0)


class SharedBufferClient:
    """Access of a worker to the buffers of one store.

    The store is process `pid`. Raises `OSError` when that has ended.
    """

    def __init__(self, pid: int) -> None:
        self._writers: dict[int, SharedBufferWriter] = {}
        self._life: select.poll | None = None
        if (process := _open_process(pid)) is not None:
            weakref.finalize(self, os.close, process)
            self._life = select.poll()
            self._life.register(process, select.POLLIN)

    @property
    def is_alive(self) -> bool:
        """Whether the store's process is certainly alive.

        Always False if the system cannot tell.
        """
        return self._life is not None and not self._life.poll(0)

    def writer(self, handle: BufferHandle) -> SharedBufferWriter:
        """Open the buffer to write into.

        Raises `OSError` when the store has ended.
        """
        if handle.number not in self._writers:
            self._writers[handle.number] = SharedBufferWriter(handle.path)
        return self._writers[handle.number]


def _open_process(pid: int) -> int | None:
    """Open a descriptor that becomes readable at a process's end.

    None if the system cannot do this or refuses.
    """
    if not hasattr(os, "pidfd_open"):  # Some builds of Python for Linux lack it too.
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def read_shared_buffer(path: str, metadata: Metadata) -> EncodedCheckpoint:
    """Map the checkpoint with this metadata, without a copy.

    Raises `OSError` when the store has ended.
    """
    num_bytes = sum(whole_sizes(metadata).values())
    with Path(path).open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), METADATA_ROOM + num_bytes, access=mmap.ACCESS_READ))
    return EncodedCheckpoint(metadata=metadata, shards=split_shards(metadata, content[METADATA_ROOM:]))
