"""The way of commits from memory to storage: in a thread of its own, now and then, and all of it at a flush."""

from __future__ import annotations

import logging
import threading
import time

from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import EncodedCheckpoint
from forebay.checkpoint.files import CheckpointFiles
from forebay.errors import WriteFailed
from forebay.storage.credentials import redact

# Commits that are to be kept for ever and wait for their turn: each holds a copy of the state in memory.
MOST_WAITING = 2
# Until a failed upload is tried again, where every commit is due at once.
RETRY_S = 1.0
CLOSE_S = 10.0

log = logging.getLogger(__name__)


class Uploader:
    """Takes every commit of a run and writes the newest to storage every `storage_every_s`, the first one at once.

    Commits to be kept for ever are all written; `offer` waits for a storage that is slower than they come, unless it
    fails: then the oldest is given up, with a warning. A commit that goes back behind what is in storage is written
    while `offer` waits: what it gave up must not be found there. What was offered must stay as it is while `holds`
    names it.
    """

    def __init__(self, safekeeping: CheckpointConfig) -> None:
        self._safekeeping = safekeeping
        self._files = CheckpointFiles(safekeeping)
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._newest: EncodedCheckpoint | None = None
        self._going_back: EncodedCheckpoint | None = None
        self._waiting: list[EncodedCheckpoint] = []
        self._at_work: list[EncodedCheckpoint] = []
        self._stored: EncodedCheckpoint | None = None
        self._due_at = 0.0
        self._is_failing = self._is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def files(self) -> CheckpointFiles:
        """Where they go."""
        return self._files

    @property
    def is_done(self) -> bool:
        """Whether all that was offered and has to be in storage is there."""
        with self._changed:
            return self._is_settled

    def holds(self) -> list[EncodedCheckpoint]:
        """What has been offered and may still be read from."""
        with self._changed:
            return [*self._waiting, *self._at_work, *self._unstored]

    def offer(self, sealed: EncodedCheckpoint) -> None:
        """Take a commit, the newest of the run by now."""
        self.take(sealed)
        self.wait(sealed)

    def take(self, sealed: EncodedCheckpoint) -> None:
        """The part of `offer` that waits for nothing."""
        with self._changed:
            if sealed is self._newest:
                return
            self._waiting = [older for older in self._waiting if older.step < sealed.step]
            if any(other.step >= sealed.step for other in (*self._at_work, *filter(None, [self._stored]))):
                self._going_back, self._due_at = sealed, 0.0
            # All before it waits: others may be offered meanwhile, or this one forgotten.
            if self._safekeeping.is_kept(sealed.step):
                self._waiting.append(sealed)
            self._newest = sealed
            self._changed.notify_all()
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="forebay-uploads", daemon=True)
                self._thread.start()

    def wait(self, sealed: EncodedCheckpoint) -> None:
        """The part of `offer` that waits."""
        with self._changed:
            if sealed in self._waiting:
                self._make_room()
            if sealed is self._going_back:
                self._changed.wait_for(lambda: sealed not in self._unstored or self._is_failing or self._is_closing)
                if self._going_back is sealed:
                    self._going_back = None

    def forget(self) -> None:
        """Give up what is not in storage yet: another one has the newest commit now."""
        with self._changed:
            self._newest, self._stored, self._waiting = None, None, []
            del self._at_work[1:]
            self._changed.notify_all()

    def flush(self) -> None:
        """Write all that is not in storage, on this thread. Raises `WriteFailed`."""
        try:
            self._write(everything=True)
        except Exception as error:  # file systems of fsspec raise anything
            raise WriteFailed(
                f"the newest commit could not be written to {self._files.uri} ({_one_line(error)}). Check that the "
                "storage answers, has room, and that this user may write to it.",
                uri=self._files.uri,
            ) from error

    def close(self) -> None:
        """End the thread; an upload under way is given a little time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    @property
    def _unstored(self) -> list[EncodedCheckpoint]:
        """The newest, if there is one that storage has not got: after `forget`, none is left to be written."""
        return [] if self._newest is None or self._newest is self._stored else [self._newest]

    @property
    def _is_settled(self) -> bool:
        return not self._unstored and not self._waiting

    def _make_room(self) -> None:
        self._changed.wait_for(lambda: len(self._waiting) <= MOST_WAITING or self._is_failing or self._is_closing)
        while len(self._waiting) > MOST_WAITING:
            lost = self._waiting.pop(0)
            log.warning("The commit of step %d is not kept: %s takes none.", lost.step, self._files.uri)

    def _run(self) -> None:
        while self._wait_until_due():
            try:
                self._write(everything=False)
            except Exception as error:  # noqa: BLE001 - file systems of fsspec raise anything
                log.warning("A commit could not be written to %s (%s).", self._files.uri, _one_line(error))

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
            for sealed in self._take(everything=everything):
                if not self._is_at_work(sealed):
                    continue
                try:
                    self._files.write(sealed)
                except BaseException:
                    self._note_failure()
                    raise
                self._note(sealed)

    def _take(self, *, everything: bool) -> list[EncodedCheckpoint]:
        """What to write now, the newest last. What is offered meanwhile waits: else a flush might never end."""
        with self._changed:
            taken = list(self._waiting)
            is_due = everything or self._due_at <= time.monotonic()
            if is_due:
                taken += [newest for newest in self._unstored if newest not in taken]
            self._at_work = taken
            return list(taken)

    def _is_at_work(self, sealed: EncodedCheckpoint) -> bool:
        """Whether it was not forgotten while those before it were written."""
        with self._changed:
            return sealed in self._at_work

    def _note(self, written: EncodedCheckpoint) -> None:
        with self._changed:
            self._at_work.remove(written)
            self._stored, self._is_failing = written, False
            self._waiting = [other for other in self._waiting if other is not written]
            goes_back = self._newest is not None and self._newest is not written and self._newest.step <= written.step
            self._due_at = 0.0 if goes_back else time.monotonic() + self._safekeeping.storage_every_s
            self._changed.notify_all()

    def _note_failure(self) -> None:
        with self._changed:
            self._at_work, self._is_failing = [], True
            self._due_at = time.monotonic() + max(self._safekeeping.storage_every_s, RETRY_S)
            self._changed.notify_all()


def _one_line(error: BaseException) -> str:
    return redact(f"{type(error).__name__}: {error}".partition("\n")[0])
