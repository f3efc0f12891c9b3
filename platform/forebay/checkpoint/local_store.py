"""`CheckpointStore` of the local driver: on this machine's disk at once, then uploaded to remote storage."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DirectoryStore,
    Encoder,
    Found,
    found_in,
    newest_of,
)
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import STATE, EncodedCheckpoint
from forebay.checkpoint.files import CheckpointFiles
from forebay.checkpoint.uploader import Uploader
from forebay.errors import WriteFailed
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import below, resolve
from forebay.storage.retry import read

SPOOLS = "~/.cache/forebay-commits"
OWNER = "spooled-by"


def open_local_commits(safekeeping: CheckpointConfig) -> CheckpointStore:
    """The commits of a run whose workers are processes of this machine.

    A commit on this machine's own disk outlives every process as soon as it is written, and writing is as quick as
    memory: the kernel keeps it until the disk has it. Storage elsewhere gets them by way of such a folder.
    """
    if resolve(safekeeping.uri).is_local:
        return DirectStore(safekeeping.uri, keep_last=safekeeping.keep_last, keep_every=safekeeping.keep_every)
    return SpooledStore(safekeeping)


class DirectStore(DirectoryStore):
    """Straight into storage. What it refuses ends the run, whose user is to know where there is no room."""

    def save(self, commit: Checkpoint) -> None:
        """Return once `commit` is in storage. Raises `WriteFailed`."""
        try:
            super().save(commit)
        except OSError as error:
            raise WriteFailed(
                f"the commit of step {commit.step} cannot be written to {self._files.uri} ({error}). Those before it "
                "are kept: make room or give access, and run the same name again to continue.",
                uri=self._files.uri,
                step=commit.step,
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spool:
    """The folder between a worker and storage, while it is in use."""

    folder: Path
    files: CheckpointFiles
    uploads: Uploader


class SpooledStore:
    """`CheckpointStore` on this machine's disk, uploaded every `storage_every_s`: a process that is killed loses none.

    A machine that is lost takes along what was saved since the last upload. The folder belongs to the run in storage
    and to no other of the same name: a run that was begun anew there, or went on from another machine, makes the folder
    here worthless, which the word `spooled-by` beside the commits in storage tells.
    """

    def __init__(self, safekeeping: CheckpointConfig, spools: str = SPOOLS) -> None:
        self._safekeeping = safekeeping
        self._spools = Path(spools).expanduser()
        self._sealer, self._pad = Encoder(), ReusableBuffer()
        self._opened: _Spool | None = None

    def save(self, commit: Checkpoint) -> None:
        """Return once `commit` is on this machine's disk."""
        spool = self._spool()
        sealed = self._sealer.seal(commit, self._pad)
        spool.files.write(sealed)
        spool.uploads.offer(self._mapped(sealed))

    def newest(self) -> Checkpoint | None:
        """The newest whole commit of this machine's disk or in storage."""
        spool = self._spool()
        near = [Found(found.step, 1, found.title, found.read) for found in found_in(spool.files)]
        return newest_of([*near, *found_in(spool.uploads.files)])

    def flush(self) -> None:
        """Return once the newest commit is in storage. Raises `WriteFailed`."""
        self._spool().uploads.flush()

    def close(self) -> None:
        """End the uploads. The folder stays if storage has not got all of it."""
        if self._opened is None:
            return
        uploads = self._opened.uploads
        uploads.close()
        if uploads.is_done:
            shutil.rmtree(self._opened.folder, ignore_errors=True)
        self._opened = None

    def _spool(self) -> _Spool:
        if self._opened is None:
            uploads = Uploader(self._safekeeping)
            folder = self._spools / hashlib.sha256(uploads.files.uri.encode()).hexdigest()[:16]
            self._own(folder, uploads.files.uri)
            files = CheckpointFiles(CheckpointConfig(uri=str(folder), keep_last=self._safekeeping.keep_last))
            self._opened = _Spool(folder=folder, files=files, uploads=uploads)
            self._offer_what_was_left()
        return self._opened

    def _own(self, folder: Path, uri: str) -> None:
        """Empty the folder, unless the run in storage was last spooled from just here."""
        here, place = folder / OWNER, resolve(below(uri, OWNER))
        owner = here.read_bytes() if here.exists() else b""
        if owner and owner == _read(place.uri):
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        owner = uuid.uuid4().hex.encode()
        try:
            place.fs.create_dir(place.path.rpartition("/")[0], recursive=True)
            write_atomically(place.uri, owner)
        except OSError as error:
            raise WriteFailed(
                f"{place.uri} cannot be written ({error}). Check that the storage answers, has room, and that this "
                "user may write to it.",
                uri=place.uri,
            ) from error
        here.write_bytes(owner)

    def _offer_what_was_left(self) -> None:
        """Have uploaded what a process that was killed had saved."""
        assert self._opened is not None
        left = newest_of(found_in(self._opened.files))
        stored = self._opened.uploads.files.steps()
        if left is not None and left.step >= max(stored, default=-1):
            self._opened.uploads.offer(self._opened.files.read(left.step))

    def _mapped(self, sealed: EncodedCheckpoint) -> EncodedCheckpoint:
        """The same from the disk: the pad is for the next one. A file that is deleted stays while it is mapped."""
        assert self._opened is not None
        path = Path(self._opened.files.title(sealed.step)) / STATE
        with path.open("rb") as file:
            state = mmap.mmap(file.fileno(), sealed.num_bytes, access=mmap.ACCESS_READ)
        return EncodedCheckpoint(facts=sealed.facts, state=memoryview(state))


def _read(uri: str) -> bytes | None:
    place = resolve(uri)

    def contents() -> bytes:
        with place.fs.open_input_stream(place.path) as stream:
            return bytes(stream.read())

    try:
        return read(uri, contents)
    except FileNotFoundError:
        return None
