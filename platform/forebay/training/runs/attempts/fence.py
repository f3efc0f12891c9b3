"""Fence of a running attempt against later attempts.

As soon as a later attempt exists, this one ends and keeps nothing more. While its own claim is missing, as with a share
that was unmounted, it keeps nothing, and after a limit it ends.
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
from forebay.storage.atomic import ADVICE, hold, let_go, write_failed
from forebay.storage.credentials import redact
from forebay.storage.file_lock import FileLock
from forebay.training.checkpoint.files.claim import REMEDY, Claim, ClaimGone, check_own, fenced_error, is_gone_too_long
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, AttemptHeartbeat

ASK_S = 15.0
"""Time between two questions of a driver for a later attempt, which are also its heartbeats.

A driver that finds one ends within 20 s of its first chance to see it: under Ray, its processes take 3 to 4 s to end.
"""
SILENT_S = 60.0
"""Time without an answer from storage after which that is logged."""
CONFIRM_S = 900.0
"""Time limit for storage to answer, after which training ends."""
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
        self._is_unheard = False
        self._end: Fenced | WriteFailed | None = None
        self._asks_since: float | None = None
        self._gone_since: float | None = None
        if files is not None:
            hold(files.run.location)
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
    def claim_uri(self) -> str | None:
        """URI of the claim of this attempt.

        None if nothing is guarded.
        """
        return None if self._files is None or self._claim is None else self._files.claim_uri(self._claim.number)

    @property
    def token(self) -> str:
        """Token that the claim of this attempt holds."""
        return "" if self._claim is None else self._claim.token

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
            thread = threading.Thread(target=self._watch, args=(each_round,), name="forebay-fence", daemon=True)
            self._thread = begin(thread)

    def show(self, **progress: object) -> None:
        """Set the progress that the next heartbeat shows."""
        self._heartbeat = replace(self._heartbeat, **progress)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `Fenced` if a later attempt was seen.

        Raises `WriteFailed` if storage was silent, or the own claim missing, for too long. Sends no request.
        """
        if self._end is None and self._silent_s > max(CONFIRM_S, 0.0):
            # Also where the thread still waits for an answer, as of a server of NFS that is lost.
            self._end = self._too_silent("the heartbeat", TimeoutError(f"no answer for {self._silent_s:.0f} s"))
        if self._end is not None:
            raise self._end

    def ask(self) -> None:
        """Look for a later attempt, and for the own claim, now.

        Raises `Fenced`, `ClaimGone`, and `OSError` if storage does not answer.
        """
        self.check()
        if self._files is None or self._claim is None:
            return
        number = self._claim.number
        self._asks_since = self._asks_since or time.monotonic()
        try:
            if self._files.has(number + 1):
                raise fenced_error(self._files.claim_uri(number + 1), number)
            check_own(self._files.claim_uri(number), number, self._claim.token)
        except Fenced as fenced:
            self._end = fenced
            raise
        except ClaimGone:
            self._gone_since = self._gone_since or time.monotonic()
            raise
        self._asks_since = self._gone_since = None

    def confirm(self) -> None:
        """Wait until storage confirms that no later attempt exists.

        Raises `Fenced`, and `WriteFailed`.
        """
        deadline = time.monotonic() + CONFIRM_S
        while True:
            try:
                return self.ask()
            except OSError as error:
                if time.monotonic() > deadline or self._is_too_long(error):
                    raise self._too_silent("the result", error) from None
                log.warning("The result waits (%s).", redact(str(error)))
                time.sleep(AGAIN_S)

    @property
    def _silent_s(self) -> float:
        """Seconds since the first question without an answer."""
        since = self._asks_since  # read once: another thread may get an answer
        return 0.0 if since is None else time.monotonic() - since

    def _is_too_long(self, error: Exception) -> bool:
        if not isinstance(error, ClaimGone):
            return self._silent_s > CONFIRM_S
        since = self._gone_since
        return since is not None and is_gone_too_long(since)

    def _too_silent(self, what: str, error: Exception) -> WriteFailed:
        assert self._files is not None
        return write_failed(what, self._files.uri, error, REMEDY if isinstance(error, ClaimGone) else ADVICE)

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

        A fenced attempt records nothing, nor does one whose claim is missing: its file would be another's.
        """
        try:
            self._is_released.set()
            if self._thread is not None:
                self._thread.join(JOIN_S)
            if self._files is not None and self._claim is not None and end is not None:
                self._record(self._files, self._claim.number, end)
        finally:  # a second Ctrl-C: this process must be able to start the run again
            if self._files is not None and self._claim is not None:
                let_go(self._files.run.location)
            if self._lock is not None:
                self._lock.release()

    def _record(self, files: AttemptFiles, number: int, end: AttemptEnd) -> None:
        if isinstance(self._end, Fenced):
            return
        try:
            self._end = None
            self.ask()
            files.end(number, end)
        except Fenced:
            log.info("The end of the run is not recorded: a later attempt has it.")
        except (OSError, ForebayError) as error:
            log.warning("The end of the run could not be recorded (%s).", redact(str(error)))

    def _watch(self, each_round: Round) -> None:
        while not self._is_released.wait(ASK_S):
            try:
                self.ask()
                self._beat()
                each_round()
            except Fenced:
                return
            except (OSError, ForebayError, json.JSONDecodeError) as error:
                if self._is_too_long(error):
                    self._end = self._too_silent("the heartbeat", error)
                    return
                if isinstance(error, ClaimGone) or self._silent_s > SILENT_S:
                    log.warning(
                        "Storage has not answered for %.0f s (%s). Training continues; nothing is saved.",
                        self._silent_s,
                        redact(str(error)),
                    )

    def _beat(self) -> None:
        assert self._files is not None
        assert self._claim is not None
        self._heartbeat = replace(self._heartbeat, number=self._heartbeat.number + 1)
        try:
            self._files.beat(self._claim.number, self._heartbeat)
        except OSError as error:  # requests are obeyed all the same
            if not self._is_unheard:
                log.warning(
                    "Storage refuses the heartbeats of this run (%s). A start elsewhere would take it over: make room "
                    "or give access.",
                    redact(str(error)),
                )
            self._is_unheard = True
        else:
            self._is_unheard = False
