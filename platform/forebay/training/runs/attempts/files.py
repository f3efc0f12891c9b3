"""Files of a run's attempts, in its folder `attempts`.

Claims, heartbeats, ends, and the result of all epochs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from forebay.errors import InvalidOption
from forebay.runtime.declared_types import require_types
from forebay.storage.atomic import is_there, write_atomically
from forebay.storage.exclusive import create_exclusively, create_locked
from forebay.storage.file_lock import FileLock, try_lock
from forebay.storage.filesystem import resolve_source
from forebay.storage.globs import children
from forebay.storage.json_file import read_json_content
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles, spool_of
from forebay.training.checkpoint.files.claim import ATTEMPTS, Claim, claim_name, newest_number, read_claim
from forebay.training.checkpoint.files.names import title_of
from forebay.training.runs.run_folder import RunFolder

T = TypeVar("T")
_END_FORM = re.compile(r"(\d{6,})\.ended\.json", re.ASCII)
How = Literal["finished", "stopped", "interrupted", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """Regular end of an attempt.

    stopped: somebody asked the run to end. A run that its own callbacks or monitors end early is finished.
    interrupted: somebody asked the process to end (SIGTERM, Ctrl-C), and another start continues the run. `why` is the
    reason of an early end, or the error.
    """

    how: How
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHeartbeat:
    """Heartbeat of an attempt, with its progress.

    `number` grows with each.
    """

    number: int
    driver: str = ""
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    world_size: int = 0


class AttemptFiles:
    """Files of a run's attempts, by number.

    The claim is `000001.json` and so on. Beside it are `.alive.json` while the attempt runs, and `.ended.json` after.
    """

    def __init__(self, run: str | RunFolder) -> None:
        self.run = RunFolder.at(run)
        self._folder = self.run.location.child(ATTEMPTS)
        # Reads are repeated by those who wait for them.
        self._once = resolve_source(self._folder)
        self.is_local = self._folder.is_local

    @property
    def uri(self) -> str:
        return self._folder.uri

    def claim_uri(self, number: int) -> str:
        """URI of the claim on attempt `number`."""
        return self._folder.child(claim_name(number)).uri

    def newest(self) -> Claim | None:
        """Return the claim of the newest attempt, or None.

        Raises `OSError`, and `InvalidOption` for a file that is not a claim.
        """
        number = newest_number(self._folder)
        return None if number is None else self.claim(number)

    def changed_at(self) -> float:
        """Return the time of the newest file, by the clock of its storage. 0 without any. Raises `OSError`."""
        try:
            found = children(self._once.fs, self._once.path)
        except (FileNotFoundError, NotADirectoryError):
            return 0.0
        return max((info.mtime_ns or 0 for info in found), default=0) / 1e9

    def claim(self, number: int) -> Claim | None:
        """Claim of attempt `number`, or None. Raises as `newest`."""
        return read_claim(self._once, number)

    def restorable_by(self, number: int) -> tuple[str, ...] | None:
        """Return the checkpoints that attempt `number` may restore.

        The names of their folders, if it is claimed now: in storage, and of a local run on this machine's disk. None
        for the first attempt. Raises `OSError`.
        """
        before = self.claim(number - 1) if number > 1 else None
        if before is None:
            return None
        pinned = None if before.restorable is None else frozenset(before.restorable)
        stored = self.run.checkpoints.uri
        folders = [folder for folder in (stored, spool_of(stored)) if folder is not None]
        configs = [CheckpointConfig(uri=str(uri), attempt=before.number, restorable=pinned) for uri in folders]
        saved = [CheckpointFiles(config) for config in configs]
        for each in saved:  # a killed process may have left its last one in memory
            each.wait_until_written()
        found = {name for each in saved for name in each.complete_names()}
        return tuple(title_of(name) for name in sorted(found))

    def create(self, claim: Claim) -> FileLock | bool:
        """Create the claim.

        Returns false if another process has that number. Raises as `create_exclusively`. On a file system of this
        machine, returns the lock on it, which ends with this process.
        """
        file = self._folder.child(claim_name(claim.number))
        if self.is_local:
            # A new start may make what an earlier one of this process must not.
            Path(self._folder.path).mkdir(parents=True, exist_ok=True)
            return create_locked(file, claim.to_json()) or False
        return create_exclusively(file, claim.to_json())

    def has(self, number: int) -> bool:
        """Whether attempt `number` was created.

        Sends one request. Raises `OSError` if storage does not answer.
        """
        return is_there(self._once.child(claim_name(number)))

    def is_locked(self, number: int) -> bool | None:
        """Whether a process of this kernel holds the claim.

        None on a file system without locks.
        """
        try:
            lock = try_lock(Path(self._folder.path) / claim_name(number), flags=0)
        except OSError:
            return None
        if lock is None:
            return True
        lock.release()
        return False

    def start(self, claim: Claim) -> bool:
        """Mark an attempt of another process as started.

        Returns false if it was started before.
        """
        return create_exclusively(self._folder.child(f"{claim.number:06d}.started.json"), claim.to_json())

    def beat(self, number: int, heartbeat: AttemptHeartbeat) -> None:
        """Write a heartbeat. Raises `OSError`."""
        write_atomically(self._folder.child(f"{number:06d}.heartbeat.json"), json.dumps(asdict(heartbeat)).encode())

    def heartbeat(self, number: int) -> AttemptHeartbeat | None:
        """Newest readable heartbeat of an attempt. Raises `OSError`."""
        try:
            return self._fact(f"{number:06d}.heartbeat.json", AttemptHeartbeat)
        except InvalidOption:  # it says nothing: an attempt that is alive writes the next one
            return None

    def end(self, number: int, end: AttemptEnd) -> None:
        """Record the regular end of an attempt. Raises `OSError`."""
        write_atomically(self._folder.child(f"{number:06d}.ended.json"), json.dumps(asdict(end)).encode())

    def ended(self, number: int) -> AttemptEnd | None:
        """Regular end of an attempt, or None.

        Raises `OSError`, and `InvalidOption` for a damaged file.
        """
        return self._fact(f"{number:06d}.ended.json", AttemptEnd)

    def num_failed(self, since: int, before: int) -> int:
        """Count attempts `since` to `before` - 1 that failed or were interrupted. Raises as `ended`.

        Only ends that are there are read: a file in the place of a claim may have any number.
        """
        try:
            names = [_END_FORM.fullmatch(info.base_name) for info in children(self._once.fs, self._once.path)]
        except (FileNotFoundError, NotADirectoryError):
            return 0
        numbers = [int(name[1]) for name in names if name]
        ends = [self.ended(number) for number in numbers if since <= number < before]
        return sum(end is not None and end.how in ("failed", "interrupted") for end in ends)

    def finish(self, epochs: int, result: str) -> bool:
        """Record the result of all `epochs` epochs.

        Returns false if another attempt has recorded it before. Raises as `create_exclusively`.
        """
        return create_exclusively(self._folder.child(self.finished_name(epochs)), result.encode())

    def finished(self, epochs: int) -> bytes | None:
        """Return the first recorded result of `epochs` epochs.

        None if there is none. Raises `OSError`.
        """
        return self._read(self.finished_name(epochs))

    @staticmethod
    def finished_name(epochs: int) -> str:
        """Name of the file of the first result of `epochs` epochs."""
        return f"finished-{epochs:06d}.json"

    def _fact(self, name: str, kind: Callable[..., T]) -> T | None:
        content = self._read(name)
        if content is None:
            return None
        try:
            return require_types(kind(**json.loads(content)))
        except (ValueError, TypeError, RecursionError) as error:
            uri = self._folder.child(name).uri
            raise InvalidOption(
                f"{uri} was not written by Forebay, or is damaged ({error}). Copy the run's folder again, or remove "
                "the file if no process trains the run.",
                uri=uri,
            ) from error

    def _read(self, name: str) -> bytes | None:
        try:
            return read_json_content(self._once.child(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
