"""Fence of a running attempt against later attempts.

As soon as a later attempt exists, this one ends and keeps nothing more.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from forebay.errors import Fenced, ForebayError, WriteFailed
from forebay.runtime.foreign_code import begin
from forebay.storage.atomic import ADVICE, write_failed
from forebay.storage.credentials import redact
from forebay.storage.file_lock import FileLock
from forebay.training.checkpoint.files.checkpoint_files import fenced_error
from forebay.training.checkpoint.files.claim import Claim
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, AttemptHeartbeat

ASK_S = 15.0
"""Time between two questions of a driver for a later attempt, which are also its heartbeats.

A driver that finds one ends within 20 s of its first chance to see it: under Ray, its processes take 3 to 4 s to end.
"""
SILENT_S = 60.0
"""Time without an answer from storage after which that is logged."""
CONFIRM_S = 900.0
"""Time limit for storage to answer before the result of a run is recorded."""
AGAIN_S = 1.0
JOIN_S = 5.0

log = logging.getLogger(__name__)

Round = Callable[[], object]
"""Called in the fence's thread each time storage has answered. May raise `OSError`."""


class Fence:
    """Attempt of this process, checked for a successor.

    It is checked every `ASK_S` seconds in a thread, and before anything is recorded. A fence without files guards
    nothing: the store cannot create files exclusively.
    """

    def __init__(self, files: AttemptFiles | None, claim: Claim | None, lock: FileLock | None = None) -> None:
        self._files, self._claim, self._lock = files, claim, lock
        self._heartbeat = AttemptHeartbeat(number=0)
        self._fenced: Fenced | None = None
        self._answered_at = time.monotonic()
        self._is_released = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def number(self) -> int | None:
        """Number of this attempt. None if nothing is guarded."""
        return None if self._claim is None else self._claim.number

    @property
    def next_claim_uri(self) -> str | None:
        """URI of the claim that would end this attempt.

        None if nothing is guarded.
        """
        return None if self._files is None or self._claim is None else self._files.claim_uri(self._claim.number + 1)

    @property
    def restorable(self) -> frozenset[str] | None:
        """Earlier attempts' checkpoints that this one may restore.

        The names of their folders. None if all may be restored.
        """
        names = None if self._claim is None else self._claim.restorable
        return None if names is None else frozenset(names)

    def watch(self, each_round: Round = lambda: None) -> None:
        """Start the thread that asks."""
        if self._files is not None:
            self._thread = threading.Thread(target=self._watch, args=(each_round,), name="forebay-fence", daemon=True)
            begin(self._thread)

    def show(self, **progress: object) -> None:
        """Set the progress that the next heartbeat shows."""
        self._heartbeat = replace(self._heartbeat, **progress)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `Fenced` if a later attempt was seen.

        Sends no request.
        """
        if self._fenced is not None:
            raise self._fenced

    def ask(self) -> None:
        """Look for a later attempt now.

        Raises `Fenced`, and `OSError` if storage does not answer.
        """
        self.check()
        if self._files is None or self._claim is None:
            return
        if self._files.has(self._claim.number + 1):
            self._fenced = fenced_error(self._files.claim_uri(self._claim.number + 1), self._claim.number)
            raise self._fenced
        self._answered_at = time.monotonic()

    def confirm(self) -> None:
        """Wait until storage confirms that no later attempt exists.

        Raises `Fenced`, and `WriteFailed`.
        """
        deadline = time.monotonic() + CONFIRM_S
        while True:
            try:
                return self.ask()
            except OSError as error:
                if time.monotonic() > deadline:
                    assert self._files is not None
                    raise write_failed("the result", self._files.uri, error, ADVICE) from None
                log.warning("The result waits: %s does not answer.", self._files.uri if self._files else "storage")
                time.sleep(AGAIN_S)

    def finish(self, epochs: int, result: str) -> bytes | None:
        """Record the result of all `epochs` epochs.

        Returns the result of another attempt if it was recorded before. Raises `WriteFailed`.
        """
        if self._files is None:
            return None
        try:
            return None if self._files.finish(epochs, result) else self._files.finished(epochs)
        except OSError as error:
            raise write_failed("the result", self._files.uri, error, ADVICE) from None

    def release(self, end: AttemptEnd | None) -> None:
        """End the thread, record `end`, and release the claim.

        A fenced attempt records nothing.
        """
        self._is_released.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        if end is not None and self._fenced is None and self._files is not None and self._claim is not None:
            try:
                self._files.end(self._claim.number, end)
            except (OSError, WriteFailed) as error:
                log.warning("The end of the run could not be recorded (%s).", redact(str(error)))
        if self._lock is not None:
            self._lock.release()

    def _watch(self, each_round: Round) -> None:
        while not self._is_released.wait(ASK_S):
            try:
                self.ask()
                self._beat()
                each_round()
            except Fenced:
                return
            except (OSError, ForebayError, json.JSONDecodeError) as error:
                silent_s = time.monotonic() - self._answered_at
                if silent_s > SILENT_S:
                    log.warning(
                        "Storage has not answered for %.0f s (%s). Training continues; uploads wait.",
                        silent_s,
                        redact(str(error)),
                    )

    def _beat(self) -> None:
        assert self._files is not None
        assert self._claim is not None
        self._heartbeat = replace(self._heartbeat, number=self._heartbeat.number + 1)
        self._files.beat(self._claim.number, self._heartbeat)
