"""Upload of checkpoints from memory to storage.

It runs in a thread, at intervals, and completely at a flush.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pyarrow as pa

from forebay.errors import Fenced, ForebayError, WriteFailed
from forebay.runtime.foreign_code import begin, error_of, replaced_errors
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import redact
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles

# Permanent checkpoints that wait for their turn. Each holds a copy of the state in memory.
MOST_WAITING = 2
# Pause before a failed upload is repeated, if every checkpoint is due at once.
RETRY_S = 1.0
CLOSE_S = 10.0
_WRITE_ERRORS = (OSError, RuntimeError, pa.ArrowException, ForebayError)

log = logging.getLogger(__name__)

UploadParts = Callable[[EncodedCheckpoint, CheckpointConfig], bool]
"""Function that writes a checkpoint's parts, which are elsewhere, to storage. Returns False if one is lost."""


def _has_all(_encoded: EncodedCheckpoint, _config: CheckpointConfig) -> bool:
    return True


class Uploader:
    """Uploads the newest checkpoint of a run at intervals.

    It receives every checkpoint and writes the newest every `storage_every_s`, the first at once.

    All permanent checkpoints are written. If storage is too slow for them, `offer` waits. If storage fails, the oldest
    is dropped with a warning. A checkpoint of an earlier step than the one in storage is written while `offer` waits,
    so that storage holds no step of the abandoned future. An offered checkpoint must not change while `in_use` contains
    it.
    """

    def __init__(self, config: CheckpointConfig, upload_parts: UploadParts = _has_all) -> None:
        self._config, self._upload_parts = config, upload_parts
        self._files = CheckpointFiles(config)
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._newest: EncodedCheckpoint | None = None
        self._going_back: EncodedCheckpoint | None = None
        self._waiting: list[EncodedCheckpoint] = []
        self._in_progress: list[EncodedCheckpoint] = []
        self._stored: EncodedCheckpoint | None = None
        self._due_at = 0.0
        self._is_failing = self._is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def files(self) -> CheckpointFiles:
        """Folder for the uploads."""
        return self._files

    @property
    def is_done(self) -> bool:
        """Whether storage has all offered checkpoints that must be there."""
        with self._changed:
            return self._is_settled

    def in_use(self) -> list[EncodedCheckpoint]:
        """Offered checkpoints that may still be read."""
        with self._changed:
            return [*self._waiting, *self._in_progress, *self._unstored]

    def offer(self, encoded: EncodedCheckpoint) -> None:
        """Add the newest checkpoint, and wait if needed.

        The class says when.
        """
        self.enqueue(encoded)
        self.wait_for_room(encoded)

    def enqueue(self, encoded: EncodedCheckpoint) -> None:
        """Add the newest checkpoint without waiting.

        The first half of `offer`.
        """
        with self._changed:
            if encoded is self._newest:
                return
            self._waiting = [older for older in self._waiting if older.step < encoded.step]
            if any(other.step >= encoded.step for other in (*self._in_progress, *filter(None, [self._stored]))):
                self._going_back, self._due_at = encoded, 0.0
            # Before any wait: another may be offered meanwhile, or this one discarded.
            if self._config.is_permanent(encoded.step) or encoded.is_best:
                self._waiting.append(encoded)
            self._newest = encoded
            self._changed.notify_all()
            if self._thread is None and not self._is_closing:
                self._thread = begin(threading.Thread(target=self._run, name="forebay-uploads", daemon=True))

    def wait_for_room(self, encoded: EncodedCheckpoint) -> None:
        """Wait while storage is too slow for `encoded`.

        The second half of `offer`.
        """
        with self._changed:
            if encoded in self._waiting:
                self._make_room()
            if encoded is self._going_back:
                self._changed.wait_for(lambda: encoded not in self._unstored or self._is_failing or self._is_closing)
                if self._going_back is encoded:
                    self._going_back = None

    def discard(self) -> None:
        """Drop everything that is not in storage yet.

        Another store has the newest checkpoint now.
        """
        with self._changed:
            self._newest, self._stored, self._waiting = None, None, []
            del self._in_progress[1:]
            self._changed.notify_all()

    def flush(self) -> None:
        """Write missing checkpoints to storage, on this thread.

        Raises `WriteFailed`, and `Fenced`.
        """
        with replaced_errors(self._write_failed, _WRITE_ERRORS):
            self._write(everything=True)

    def hand_over(self, encoded: EncodedCheckpoint, successor: CheckpointConfig) -> None:
        """Write `encoded` as a checkpoint of a later attempt.

        That attempt asks for it. Raises `WriteFailed`, and `Fenced`.
        """
        files = CheckpointFiles(successor)
        with replaced_errors(self._write_failed, _WRITE_ERRORS), self._writing:
            files.check_fence()
            if not self._upload_parts(encoded, successor):
                raise _lost_parts(encoded)
            files.write(encoded)

    def close(self) -> None:
        """End the thread.

        Waits up to `CLOSE_S` seconds for an upload in progress.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    @property
    def _unstored(self) -> list[EncodedCheckpoint]:
        """Newest checkpoint, unless storage has it.

        After `discard`, none is left to be written.
        """
        return [] if self._newest is None or self._newest is self._stored else [self._newest]

    @property
    def _is_settled(self) -> bool:
        return not self._unstored and not self._waiting

    def _make_room(self) -> None:
        self._changed.wait_for(lambda: len(self._waiting) <= MOST_WAITING or self._is_failing or self._is_closing)
        while len(self._waiting) > MOST_WAITING:
            lost = self._waiting.pop(0)
            log.warning("The checkpoint of step %d is not kept: writes to %s fail.", lost.step, self._files.uri)

    def _run(self) -> None:
        while self._wait_until_due():
            if error := error_of(lambda: self._write(everything=False)):  # any error: the thread goes on
                log.warning("A checkpoint could not be written to %s (%s).", self._files.uri, _one_line(error))

    def _wait_until_due(self) -> bool:
        with self._changed:
            while not self._is_closing:
                wait_s = self._due_in_s()
                if wait_s is not None and wait_s <= 0:
                    return True
                self._changed.wait(wait_s)
        return False

    def _due_in_s(self) -> float | None:
        if self._is_settled:
            return None
        return 0.0 if self._waiting and not self._is_failing else self._due_at - time.monotonic()

    def _write(self, *, everything: bool) -> None:
        with self._writing:
            for encoded in self._start_batch(everything=everything):
                if not self._is_in_progress(encoded):
                    continue
                with ExitStack() as undo:
                    undo.callback(self._record_failure)
                    self._files.check_fence()
                    is_whole = self._upload_parts(encoded, self._config)
                    if is_whole:
                        self._files.write(encoded)
                    elif everything:
                        raise _lost_parts(encoded)
                    undo.pop_all()
                self._record_written(encoded) if is_whole else self._record_superseded(encoded)

    def _write_failed(self, error: Exception) -> WriteFailed | Fenced:
        return error if isinstance(error, Fenced) else write_failed("the newest checkpoint", self._files.uri, error)

    def _start_batch(self, *, everything: bool) -> list[EncodedCheckpoint]:
        """Checkpoints to write now, the newest last.

        Later offers wait: otherwise a flush might never end.
        """
        with self._changed:
            batch = list(self._waiting)
            is_due = everything or self._due_at <= time.monotonic()
            if is_due:
                batch += [newest for newest in self._unstored if newest not in batch]
            self._in_progress = batch
            return list(batch)

    def _is_in_progress(self, encoded: EncodedCheckpoint) -> bool:
        """Whether the checkpoint is still to be written.

        It may have been discarded while earlier ones were written.
        """
        with self._changed:
            return encoded in self._in_progress

    def _record_written(self, written: EncodedCheckpoint) -> None:
        with self._changed:
            self._in_progress.remove(written)
            self._stored, self._is_failing = written, False
            self._waiting = [other for other in self._waiting if other is not written]
            goes_back = self._newest is not None and self._newest is not written and self._newest.step <= written.step
            self._due_at = 0.0 if goes_back else time.monotonic() + self._config.storage_every_s
            self._changed.notify_all()

    def _record_superseded(self, encoded: EncodedCheckpoint) -> None:
        """Leave out a checkpoint whose parts were replaced.

        Later ones are there. The newest is taken soon.
        """
        with self._changed:
            self._in_progress.remove(encoded)
            self._waiting = [other for other in self._waiting if other is not encoded]
            self._due_at = time.monotonic() + RETRY_S
            self._changed.notify_all()

    def _record_failure(self) -> None:
        with self._changed:
            self._in_progress, self._is_failing = [], True
            self._due_at = time.monotonic() + max(self._config.storage_every_s, RETRY_S)
            self._changed.notify_all()


def _lost_parts(encoded: EncodedCheckpoint) -> OSError:
    return OSError(f"parts of the checkpoint of step {encoded.step} are lost")


def _one_line(error: BaseException) -> str:
    return redact(f"{type(error).__name__}: {error}".partition("\n")[0])
