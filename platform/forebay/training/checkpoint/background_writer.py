"""Checkpoints written to this machine's disk during training.

Their state is copied into memory first. A second process has that memory too.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from forebay.errors import LimitReached
from forebay.runtime.foreign_code import OutcomeThread, begin, outcome_of
from forebay.runtime.memory.available import available_bytes
from forebay.storage.atomic import write_failed
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import Checkpoint, Encoder
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint, part_facts
from forebay.training.checkpoint.files.pending import WRITING
from forebay.training.checkpoint.memory_keeper import start_keeper
from forebay.training.checkpoint.parts.part import PartReceipt
from forebay.training.checkpoint.serialization import gpu_of_thread, lock_pages, num_bytes_of
from forebay.training.checkpoint.shared_buffer import SharedBuffer, SharedBufferWriter, can_outlive

LEAST_BYTES = 16 << 20
"""A smaller checkpoint is written while the step waits: that takes some 20 ms, and needs no second process."""
NUM_BUFFERS = 2
"""One is written while the next one is filled. A third checkpoint waits for the first."""
LOCK_S = 1.0

log = logging.getLogger(__name__)

Write = Callable[[EncodedCheckpoint], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Draft:
    """A checkpoint in memory: the number of the buffer with its own state, and the buffers of its parts."""

    number: int
    encoded: EncodedCheckpoint
    parts: Mapping[int, SharedBuffer]

    @property
    def step(self) -> int:
        return self.encoded.step


class BackgroundWriter:
    """Writes checkpoints of one process in a thread.

    `write` gets them one after another. After an error, those that wait are given up: the run ends with it.

    A checkpoint in memory outlives this process: its keeper writes it to `config`, a folder on this machine. While one
    is in memory, the folder is locked (`files/pending.py`). A small checkpoint is written while the step waits, and any
    without memory of that kind, or without locks.

    Parts are in the memory of their ranks, which this process and its keeper open (`PartBuffers`).
    """

    def __init__(self, config: CheckpointConfig, write: Write) -> None:
        self._config, self._write = config, write
        self._encoder, self._buffer = Encoder(), ReusableBuffer()
        self._changed = threading.Condition()
        self._waiting: deque[_Draft] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._reserving: OutcomeThread[None] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._kept: list[int] = []
        self._parts: dict[str, SharedBuffer] = {}
        self._lock = -1
        self._is_closed = False

    def reserve(self, num_bytes: int) -> None:
        """Allocate memory for checkpoints of `num_bytes`, during training.

        Its first touch takes several times as long as the copy.
        """
        if can_outlive() and self._reserving is None:
            with suppress(LimitReached):  # then the first checkpoint allocates it
                reserve = partial(self._reserve, num_bytes, gpu_of_thread())
                self._reserving = begin(OutcomeThread(reserve, "forebay-reserve"))

    def save(self, checkpoint: Checkpoint, receipts: Sequence[PartReceipt] = ()) -> None:
        """Copy `checkpoint` into memory, where its parts are, or write it.

        Raises the error of an earlier one.
        """
        with ExitStack() as given_up:
            parts = self._taken(checkpoint.step, receipts)
            given_up.callback(_clear, parts.values())
            self.raise_failed()
            num_bytes = num_bytes_of(checkpoint.shards)
            is_large = num_bytes + sum(each.num_bytes for each in receipts) >= LEAST_BYTES
            # Parts in storage have no complete checkpoint yet: the end of another one would remove them.
            is_in_memory = len(parts) == len(receipts)
            if is_large and is_in_memory and self._can_wait() and self._add(checkpoint, receipts, parts, num_bytes):
                given_up.pop_all()
                return
            self.raise_failed(wait=True)
            encoded = self._encoder.encode(checkpoint, self._buffer, receipts)
            self._write(_with_parts(encoded, parts))

    def _can_wait(self) -> bool:
        """Whether a checkpoint in memory would be written, whatever ends this process."""
        if self._reserving is not None:
            self._reserving.join()
        # A checkpoint that waits needs the thread: without one, `close` would wait for it forever.
        return can_outlive() and self._is_kept() and self._is_served()

    def _add(
        self,
        checkpoint: Checkpoint,
        receipts: Sequence[PartReceipt],
        parts: Mapping[int, SharedBuffer],
        num_bytes: int,
    ) -> bool:
        """Copy a state of `num_bytes`, and return whether it is written later."""
        number = self._free_memory(checkpoint.step, num_bytes)
        draft = self._encoder.draft(checkpoint, self._memory[number][1], receipts)
        with self._changed:  # the thread must not release the lock in between, or fail
            is_held = self._error is None and self._has_lock()
            if is_held:
                # From here on the checkpoint is found by any process, as `pending.py` says.
                self._memory[number][1].finish(draft)
                self._waiting.append(_Draft(number=number, encoded=_with_parts(draft, parts), parts=parts))
                self._changed.notify_all()
        return is_held

    def _taken(self, step: int, receipts: Sequence[PartReceipt]) -> dict[int, SharedBuffer]:
        """Take the parts that are in memory. Returns their buffers by number. Raises `WriteFailed`."""
        found = {}
        for receipt in receipts:
            if not receipt.path:
                continue
            try:
                if receipt.path not in self._parts:
                    self._parts[receipt.path] = SharedBuffer(receipt.number, os.open(receipt.path, os.O_RDWR))
                if self._parts[receipt.path].part(step, receipt.facts) is None:
                    raise OSError("it has another part")
            except (OSError, CorruptCheckpoint) as error:
                advice = f"Rank {receipt.number - 1} has ended, or the system does not let rank 0 read its memory."
                what = f"part {receipt.number} of the checkpoint of step {step}, in {receipt.path},"
                raise write_failed(what, self._config.uri, error, advice, is_shared=False, step=step) from error
            found[receipt.number] = self._parts[receipt.path]
        for each in found.values():
            each.take()
        return found

    def raise_failed(self, *, wait: bool = False) -> None:
        """Raise the error of a checkpoint that could not be written.

        With `wait`, of those that are in memory too, once they are written.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: not self._waiting)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for all checkpoints, and release the memory.

        Logs an error that was not raised.
        """
        if self._reserving is not None:
            self._reserving.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            if self._error is not None:
                log.error("%s", self._error)
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._keeper is not None:
            _end(self._keeper)
        if self._lock >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._lock)
        self._lock, self._keeper, self._thread = -1, None, None
        self._parts.clear()

    @cached_property
    def _memory(self) -> list[tuple[SharedBuffer, SharedBufferWriter]]:
        buffers = [SharedBuffer(number) for number in range(NUM_BUFFERS)]
        return [(buffer, SharedBufferWriter(buffer.path)) for buffer in buffers]

    @property
    def _path(self) -> Path:
        return Path(self._config.uri.removeprefix("file://")) / WRITING

    def _reserve(self, num_bytes: int, gpu: int | None) -> None:
        writer = self._memory[0][1]
        writer.touch(num_bytes)
        lock_pages(writer, gpu)
        self._is_kept()

    def _free_memory(self, step: int, num_bytes: int) -> int:
        """Number of a buffer to write into.

        Waits for one. The second is not made where memory is short.
        """
        with self._changed:
            if any(step <= other.step for other in self._waiting):
                # It replaces those, in the order in which they were saved.
                self._changed.wait_for(lambda: not self._waiting)
            in_use = {each.number for each in self._waiting}
            free = [number for number in range(NUM_BUFFERS) if number not in in_use]
            made = [number for number in free if self._memory[number][1].capacity]
            if made or (free and (not in_use or available_bytes() > 2 * num_bytes)):
                return max(made, key=lambda number: self._memory[number][1].capacity, default=min(free, default=0))
            first = self._waiting[0].number
            self._changed.wait_for(lambda: all(each.number != first for each in self._waiting))
            return first

    def _is_kept(self) -> bool:
        """Whether a keeper runs that has all memory. Starts it."""
        before = self._keeper
        try:
            descriptors = [each.descriptor for each in (*(buffer for buffer, _ in self._memory), *self._parts.values())]
            if before is not None and before.poll() is None and descriptors == self._kept:
                return True
            if self._lock < 0:
                # Only the folder itself: the run's must not be made again after its share was unmounted.
                self._path.parent.mkdir(exist_ok=True)
                self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._keeper = start_keeper(self._config, self._lock, descriptors)
        except OSError as error:
            log.info("Checkpoints are written while training waits (%s).", error)
            return False
        self._kept = descriptors
        if before is not None:  # only now: it may have to write what is in memory
            _end(before)
        return True

    def _is_served(self) -> bool:
        """Whether the thread runs. Starts it."""
        with suppress(LimitReached):
            self._thread = self._thread or begin(
                threading.Thread(target=self._run, name="forebay-checkpoints", daemon=True)
            )
        return self._thread is not None

    def _has_lock(self) -> bool:
        """Whether the folder is locked.

        A process that waits for it has it for moments.
        """
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return os.path.samestat(os.fstat(self._lock), self._path.stat())
            except OSError as error:
                if not isinstance(error, BlockingIOError) or time.monotonic() > deadline:
                    return False
            time.sleep(0.001)

    def _run(self) -> None:
        while (first := self._next()) is not None:
            error = outcome_of(partial(_seal_and_write, first.encoded, self._write)).error
            with self._changed:
                done = [self._waiting.popleft()]
                if error is not None:
                    done, self._error = [*done, *self._waiting], error
                    self._waiting.clear()
                for each in done:
                    _clear([self._memory[each.number][0], *each.parts.values()])
                if not self._waiting:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                self._changed.notify_all()
            del first, done, each

    def _next(self) -> _Draft | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return self._waiting[0] if self._waiting else None


def _with_parts(encoded: EncodedCheckpoint, parts: Mapping[int, SharedBuffer]) -> EncodedCheckpoint:
    facts = part_facts(encoded.metadata)
    return encoded.with_parts({number: each.view(facts[number].num_bytes) for number, each in parts.items()})


def _clear(buffers: Iterable[SharedBuffer]) -> None:
    for each in buffers:
        each.clear()


def _end(keeper: subprocess.Popen[bytes]) -> None:
    keeper.kill()
    keeper.wait()


def _seal_and_write(draft: EncodedCheckpoint, write: Write) -> None:
    write(draft.sealed())
