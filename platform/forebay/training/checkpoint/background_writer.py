"""Checkpoints written to this machine's disk during training.

Their state is copied into memory first. A second process has that memory too.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from forebay.errors import LimitReached
from forebay.runtime.foreign_code import OutcomeThread, begin, outcome_of
from forebay.runtime.memory.available import available_bytes
from forebay.training.checkpoint.checkpoint import Checkpoint, Encoder
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.pending import WRITING
from forebay.training.checkpoint.memory_keeper import start_keeper
from forebay.training.checkpoint.serialization import lock_pages
from forebay.training.checkpoint.shared_buffer import SharedBuffer, SharedBufferWriter

NUM_BUFFERS = 2
"""One is written while the next one is filled. A third checkpoint waits for the first."""
LOCK_S = 1.0

log = logging.getLogger(__name__)

Write = Callable[[EncodedCheckpoint], None]


class BackgroundWriter:
    """Writes checkpoints of one process in a thread.

    `write` gets them one after another. After an error, those that wait are given up: the run ends with it.

    A checkpoint in memory outlives this process: its keeper writes it to `config`, a folder on this machine. While one
    is in memory, the folder is locked (`files/pending.py`). Without memory of that kind, or without locks, `save`
    refuses.
    """

    def __init__(self, config: CheckpointConfig, encoder: Encoder, write: Write) -> None:
        self._config, self._encoder, self._write = config, encoder, write
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, EncodedCheckpoint]] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._reserving: OutcomeThread[None] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lock = -1
        self._is_closed = False

    def reserve(self, num_bytes: int) -> None:
        """Allocate memory for checkpoints of `num_bytes`, during training.

        Its first touch takes several times as long as the copy.
        """
        if _can_outlive() and self._reserving is None:
            with suppress(LimitReached):  # then the first checkpoint allocates it
                self._reserving = begin(OutcomeThread(lambda: self._reserve(num_bytes), "forebay-reserve"))

    def save(self, checkpoint: Checkpoint, num_bytes: int) -> bool:
        """Copy a state of `num_bytes`, and return whether it is written later.

        If not, nothing is in progress any more, and the caller writes it. Raises the error of an earlier one.
        """
        self.raise_failed()
        if self._reserving is not None:
            self._reserving.join()
        # A checkpoint that waits needs the thread: without one, `close` would wait for it forever.
        if not _can_outlive() or not self._is_kept() or not self._is_served():
            self.raise_failed(wait=True)
            return False
        number = self._free_memory(checkpoint.step, num_bytes)
        draft = self._encoder.draft(checkpoint, self._memory[number][1])
        with self._changed:  # the thread must not release the lock in between, or fail
            is_held = self._error is None and self._has_lock()
            if is_held:
                # From here on the checkpoint is found by any process, as `pending.py` says.
                self._memory[number][1].finish(draft)
                self._waiting.append((number, draft))
                self._changed.notify_all()
        if not is_held:
            self.raise_failed(wait=True)
            return False
        return True

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
            self._keeper.kill()
            self._keeper.wait()
        if self._lock >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._lock)
        self._lock, self._keeper, self._thread = -1, None, None

    @cached_property
    def _memory(self) -> list[tuple[SharedBuffer, SharedBufferWriter]]:
        buffers = [SharedBuffer(number) for number in range(NUM_BUFFERS)]
        return [(buffer, SharedBufferWriter(buffer.path)) for buffer in buffers]

    @property
    def _path(self) -> Path:
        return Path(self._config.uri.removeprefix("file://")) / WRITING

    def _reserve(self, num_bytes: int) -> None:
        writer = self._memory[0][1]
        writer.touch(num_bytes)
        lock_pages(writer)
        self._is_kept()

    def _free_memory(self, step: int, num_bytes: int) -> int:
        """Number of a buffer to write into.

        Waits for one. The second is not made where memory is short.
        """
        with self._changed:
            if any(step <= other.step for _, other in self._waiting):
                # It replaces those, in the order in which they were saved.
                self._changed.wait_for(lambda: not self._waiting)
            in_use = {number for number, _ in self._waiting}
            free = [number for number in range(NUM_BUFFERS) if number not in in_use]
            made = [number for number in free if self._memory[number][1].capacity]
            if made or (free and (not in_use or available_bytes() > 2 * num_bytes)):
                return max(made, key=lambda number: self._memory[number][1].capacity, default=min(free, default=0))
            first = self._waiting[0][0]
            self._changed.wait_for(lambda: all(number != first for number, _ in self._waiting))
            return first

    def _is_kept(self) -> bool:
        """Whether the keeper runs. Starts it."""
        if self._keeper is not None and self._keeper.poll() is None:
            return True
        try:
            if self._lock < 0:
                # Only the folder itself: the run's must not be made again after its share was unmounted.
                self._path.parent.mkdir(exist_ok=True)
                self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._keeper = start_keeper(self._config, self._lock, [buffer.descriptor for buffer, _ in self._memory])
        except OSError as error:
            log.info("Checkpoints are written while training waits (%s).", error)
            return False
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
            error = outcome_of(partial(_seal_and_write, first[1], self._write)).error
            with self._changed:
                done = [self._waiting.popleft()]
                if error is not None:
                    done, self._error = [*done, *self._waiting], error
                    self._waiting.clear()
                for each, _ in done:
                    self._memory[each][0].clear()
                if not self._waiting:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                self._changed.notify_all()
            del first, done

    def _next(self) -> tuple[int, EncodedCheckpoint] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return self._waiting[0] if self._waiting else None


def _seal_and_write(draft: EncodedCheckpoint, write: Write) -> None:
    write(draft.sealed())


def _can_outlive() -> bool:
    """Whether two processes may share memory without a file name."""
    return sys.platform == "linux" and bool(sys.executable)
