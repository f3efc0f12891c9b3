"""Memory for the parts of one rank, from which rank 0's process writes them."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from math import prod
from subprocess import DEVNULL

from forebay.errors import LimitReached
from forebay.runtime.foreign_code import OutcomeThread, begin
from forebay.runtime.memory.available import available_bytes
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, write_part
from forebay.training.checkpoint.serialization import gpu_of_thread, lock_pages
from forebay.training.checkpoint.shared_buffer import SharedBuffer, SharedBufferWriter, can_outlive

NUM_BUFFERS = 2
"""One part is written while the next one is copied. A third waits for the first."""
_POLL_S = 0.002

log = logging.getLogger(__name__)


@cache
def can_share() -> bool:
    """Whether other processes of this user may open memory of this one.

    Asked by a process, since sandboxes differ in what they hide in /proc.
    """
    if not can_outlive():
        return False
    try:
        buffer = SharedBuffer(0)
        words = ["cat", buffer.path]
        done = subprocess.run(words, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, timeout=10, check=False)  # noqa: S603 - words of this file
    except (OSError, subprocess.TimeoutExpired) as error:
        log.info("Parts of checkpoints are written while training waits (%s).", error)
        return False
    if done.returncode:
        log.info("Parts of checkpoints are written while training waits: %s cannot be opened.", buffer.path)
    return done.returncode == 0


class PartBuffers:
    """Parts of one rank in memory, until they are written.

    The writer is rank 0's process, or its keeper. Both open the memory before the checkpoint is complete, so it may
    outlive this process. Rank 0 takes a buffer within `save`, and clears it once the part is written or given up. So a
    buffer that is not taken at the next checkpoint has a part of none.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[SharedBuffer, SharedBufferWriter]] = []
        self._reserving: OutcomeThread[None] | None = None
        self._closed = threading.Event()

    def reserve(self, num_bytes: int) -> None:
        """Allocate memory for parts of `num_bytes`, during training.

        Its first touch takes several times as long as the copy.
        """
        if can_share() and self._reserving is None and not self._buffers:
            with suppress(LimitReached):  # then the first part allocates it
                reserve = partial(self._reserve, num_bytes, gpu_of_thread())
                self._reserving = begin(OutcomeThread(reserve, "forebay-reserve"))

    def write(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        """Copy part `number` of `step` into memory.

        Waits for a free buffer. The second is not made where memory is short. Raises `OSError`.
        """
        if self._reserving is not None:
            self._reserving.join()
        whole = sum(prod(chunk.shape) * chunk.values.dtype.itemsize for chunk in chunks.values())
        buffer, writer = self._free(whole)
        buffer.clear()
        receipt = write_part(number, chunks, writer)
        writer.finish(EncodedCheckpoint.draft({"step": step}, {}, [receipt.facts]))
        return replace(receipt, path=buffer.path)

    def close(self) -> None:
        """Release the memory. What the writer has opened stays."""
        self._closed.set()
        if self._reserving is not None:
            self._reserving.join()
        self._buffers, self._reserving = [], None

    def _reserve(self, num_bytes: int, gpu: int | None) -> None:
        _, writer = self._made()
        writer.touch(num_bytes)
        lock_pages(writer, gpu)

    def _made(self) -> tuple[SharedBuffer, SharedBufferWriter]:
        buffer = SharedBuffer(len(self._buffers))
        self._buffers.append((buffer, SharedBufferWriter(buffer.path)))
        return self._buffers[-1]

    def _free(self, num_bytes: int) -> tuple[SharedBuffer, SharedBufferWriter]:
        """Buffer to write into. The state of all ranks has `num_bytes`."""
        while not self._closed.is_set():
            free = [each for each in self._buffers if not each[0].is_taken]
            if free:
                return max(free, key=lambda each: each[1].capacity)
            # Every rank of this machine makes its own now.
            if len(self._buffers) < NUM_BUFFERS and (not self._buffers or available_bytes() > 2 * num_bytes):
                return self._made()
            self._closed.wait(_POLL_S)
        raise OSError("its store was closed while it waited for memory")
