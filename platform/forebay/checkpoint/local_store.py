"""`CheckpointStore` for the local driver: first on this machine's disk, and from there to storage elsewhere."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DirectoryStore,
    Encoder,
    Tier,
    found_in,
    newest_of,
)
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import EncodedCheckpoint
from forebay.checkpoint.files import CheckpointFiles, shard_file
from forebay.checkpoint.uploader import Uploader
from forebay.storage.atomic import write_atomically, write_failed
from forebay.storage.filesystem import below, resolve
from forebay.storage.retry import read

SPOOLS = "~/.cache/forebay-checkpoints"
OWNER = "spooled-by"


def open_local_checkpoints(config: CheckpointConfig) -> CheckpointStore:
    """Open the store of a run whose workers are processes of this machine.

    A checkpoint on this machine's own disk outlives every process as soon as it is written. Writing is as fast as
    memory: the kernel keeps it until the disk has it. Storage elsewhere receives checkpoints through such a folder.
    """
    if resolve(config.uri).is_local:
        return DirectStore(config.uri, keep_last=config.keep_last, keep_every=config.keep_every)
    return SpooledStore(config)


class DirectStore(DirectoryStore):
    """Store that writes directly to storage. A refused write ends the run: its user must make room."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Return once `checkpoint` is in storage. Raises `WriteFailed`."""
        try:
            super().save(checkpoint)
        except OSError as error:
            raise write_failed(
                f"the checkpoint of step {checkpoint.step}",
                self._files.uri,
                error,
                "Those before it are kept: make room or give access, and run the same name again to continue.",
                step=checkpoint.step,
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spool:
    """Folder between a worker and storage, while it is in use."""

    folder: Path
    files: CheckpointFiles
    uploader: Uploader


class SpooledStore:
    """`CheckpointStore` on this machine's disk, uploaded every `storage_every_s`. A killed process loses no checkpoint.

    A lost machine loses the checkpoints since the last upload. The folder belongs to the run in storage, and to no
    other of the same name. If a run was started again there, or continued from another machine, the folder here is out
    of date. The file `spooled-by` beside the checkpoints in storage names the owner.
    """

    def __init__(self, config: CheckpointConfig, spools: str = SPOOLS) -> None:
        self._config = config
        self._spools = Path(spools).expanduser()
        self._encoder, self._buffer = Encoder(), ReusableBuffer()
        self._opened: _Spool | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Return once `checkpoint` is on this machine's disk."""
        spool = self._spool()
        encoded = self._encoder.encode(checkpoint, self._buffer)
        spool.files.write(encoded)
        spool.uploader.offer(self._mapped(encoded))

    def newest(self, shards: Collection[int] | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint of this machine's disk or of storage."""
        spool = self._spool()
        return newest_of([*found_in(spool.files, Tier.THIS_NODE), *found_in(spool.uploader.files)], shards)

    def flush(self) -> None:
        """Return once the newest checkpoint is in storage. Raises `WriteFailed`."""
        self._spool().uploader.flush()

    def close(self) -> None:
        """End the uploads. The folder stays if storage lacks a part of it."""
        if self._opened is None:
            return
        uploader = self._opened.uploader
        uploader.close()
        if uploader.is_done:
            shutil.rmtree(self._opened.folder, ignore_errors=True)
        self._opened = None

    def _spool(self) -> _Spool:
        if self._opened is None:
            uploader = Uploader(self._config)
            folder = self._spools / hashlib.sha256(uploader.files.uri.encode()).hexdigest()[:16]
            self._own(folder, uploader.files.uri)
            files = CheckpointFiles(CheckpointConfig(uri=str(folder), keep_last=self._config.keep_last))
            self._opened = _Spool(folder=folder, files=files, uploader=uploader)
            self._offer_remains()
        return self._opened

    def _own(self, folder: Path, uri: str) -> None:
        """Empty the folder, unless this folder was the last to upload checkpoints of the run in storage."""
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
            raise write_failed("the owner of the checkpoints", place.uri, error) from error
        here.write_bytes(owner)

    def _offer_remains(self) -> None:
        """Offer the uploader the checkpoint that a killed process had saved."""
        assert self._opened is not None
        left = newest_of(found_in(self._opened.files))
        stored = self._opened.uploader.files.steps()
        if left is not None and left.step >= max(stored, default=-1):
            self._opened.uploader.offer(self._opened.files.read(left.step))

    def _mapped(self, encoded: EncodedCheckpoint) -> EncodedCheckpoint:
        """Map the same checkpoint from the disk, because the buffer is needed for the next one.

        A mapped file stays after its deletion.
        """
        assert self._opened is not None
        folder = Path(self._opened.files.uri_of(encoded.step))
        shards = {}
        for number, content in encoded.shards.items():
            with (folder / shard_file(number)).open("rb") as file:
                shards[number] = memoryview(mmap.mmap(file.fileno(), len(content), access=mmap.ACCESS_READ))
        return EncodedCheckpoint(metadata=encoded.metadata, shards=shards)


def _read(uri: str) -> bytes | None:
    place = resolve(uri)

    def contents() -> bytes:
        with place.fs.open_input_stream(place.path) as stream:
            return bytes(stream.read())

    try:
        return read(uri, contents)
    except FileNotFoundError:
        return None
