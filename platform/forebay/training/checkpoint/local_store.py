"""`CheckpointStore` for the local driver.

Checkpoints go to this machine's disk first, and from there to storage elsewhere.
"""

from __future__ import annotations

import mmap
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TypeVar

from forebay.errors import InvalidOption, WriteFailed
from forebay.storage.atomic import read_small, write_atomically, write_failed
from forebay.storage.filesystem import below, resolve
from forebay.storage.retry import read
from forebay.training.checkpoint.background_writer import LEAST_BYTES, BackgroundWriter
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DirectoryStore,
    Tier,
    found_in,
    newest_of,
)
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import Bytes, EncodedCheckpoint, PartFacts
from forebay.training.checkpoint.files.checkpoint_files import SPOOLS, CheckpointFiles, spool_of
from forebay.training.checkpoint.files.names import file_names
from forebay.training.checkpoint.files.pending import wait_until_written
from forebay.training.checkpoint.part_buffers import PartBuffers, can_share
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, write_part
from forebay.training.checkpoint.parts.verified_part import ReadBytes
from forebay.training.checkpoint.serialization import num_bytes_of
from forebay.training.checkpoint.uploader import Uploader

OWNER = "spooled-by"

T = TypeVar("T")


def open_local_checkpoints(config: CheckpointConfig) -> CheckpointStore:
    """Open the store of a run on this machine.

    Its workers are processes of this machine.

    A checkpoint on this machine's own disk outlives every process as soon as it is written. Writing is as fast as
    memory: the kernel keeps it until the disk has it. Storage elsewhere receives checkpoints through such a folder.
    """
    if resolve(config.uri).is_local:
        return DirectStore(config)
    return SpooledStore(config)


class DirectStore(DirectoryStore):
    """A store that writes directly to storage.

    A refused write ends the run: its user must make room.

    Asks before each checkpoint whether a later attempt has taken over, and raises `Fenced` then. While the claim of its
    own attempt is missing, as with a share that was unmounted, it waits, for a limited time.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        super().__init__(config.uri, keep_last=config.keep_last, keep_every=config.keep_every)
        self._files = CheckpointFiles(config)
        self._config = config
        self._background: BackgroundWriter | None = None
        self._part_buffers: PartBuffers | None = None

    def reserve(self, num_bytes: int) -> None:
        """Allocate memory for large checkpoints, during training."""
        if num_bytes >= LEAST_BYTES:
            self._writer().reserve(num_bytes)

    def reserve_part(self, number: int, num_bytes: int) -> None:  # noqa: ARG002 - each rank has a store of its own
        """Allocate memory for this rank's parts, during training."""
        self._own_parts().reserve(num_bytes)

    def save(self, checkpoint: Checkpoint, parts: Sequence[PartReceipt] = ()) -> None:
        """Return once `checkpoint` would survive this process.

        It is in storage, or in memory and on its way. Raises `WriteFailed`, also of an earlier one.
        """
        if parts or self._background is not None or num_bytes_of(checkpoint.shards) >= LEAST_BYTES:
            self._writer().save(checkpoint, parts)
        else:
            self._with_claim(checkpoint.step, partial(super().save, checkpoint))

    def save_part(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        """Return once the part is in memory, from which rank 0 writes it.

        Without such memory, once it is in storage. Raises `WriteFailed`.
        """
        if not can_share():
            return self._with_claim(step, partial(super().save_part, step, number, chunks))
        try:
            return self._own_parts().write(step, number, chunks)
        except OSError as error:
            raise self._refused(step, error) from error

    def newest(self, shards: Collection[int] | None = None, *, before: int | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None.

        Waits for those that are in memory, also of a process that was killed.
        """
        self.raise_failed(wait=True)
        self._files.wait_until_written()
        return super().newest(shards, before=before)

    def raise_failed(self, *, wait: bool = False) -> None:
        """Raise the error of a checkpoint that could not be written."""
        if self._background is not None:
            self._background.raise_failed(wait=wait)

    def flush(self) -> None:
        """Return once all checkpoints are in storage. Raises `WriteFailed`."""
        self.raise_failed(wait=True)

    def close(self) -> None:
        """Wait for the checkpoints in memory."""
        if self._background is not None:
            self._background.close()
            self._background = None
        if self._part_buffers is not None:
            self._part_buffers.close()

    def _writer(self) -> BackgroundWriter:
        if self._background is None:
            self._background = BackgroundWriter(self._config, self._write)
        return self._background

    def _own_parts(self) -> PartBuffers:
        self._part_buffers = self._part_buffers or PartBuffers()
        return self._part_buffers

    def _write(self, encoded: EncodedCheckpoint) -> None:
        self._with_claim(encoded.step, partial(self._files.write, encoded))

    def _with_claim(self, step: int, write: Callable[[], T]) -> T:
        try:
            return self._files.with_claim(write)
        except OSError as error:
            raise self._refused(step, error) from error

    def _refused(self, step: int, error: OSError) -> WriteFailed:
        """Error for a refused write.

        Raises `Fenced` if a later attempt has removed the folder during the write.
        """
        with suppress(OSError):  # storage does not answer: then that is the error
            self._files.check_fence()
        return write_failed(
            f"the checkpoint of step {step}",
            self._files.uri,
            error,
            "Those before it are kept: make room or give access, and run the same name again to continue.",
            step=step,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spool:
    """Folder between a worker and storage, while in use."""

    folder: Path
    files: CheckpointFiles
    uploader: Uploader
    background: BackgroundWriter


class SpooledStore:
    """`CheckpointStore` on this machine's disk.

    It is uploaded every `storage_every_s`. A killed process loses no checkpoint.

    A lost machine loses the checkpoints since the last upload. The folder belongs to the run in storage, and to no
    other of the same name. If a run was started again there, or continued from another machine, the folder here is out
    of date. The file `spooled-by` beside the checkpoints in storage names the owner.
    """

    def __init__(self, config: CheckpointConfig, spools: str = SPOOLS) -> None:
        self._config = config
        self._spools = spools
        self._part_buffers: PartBuffers | None = None
        self._opened: _Spool | None = None

    def reserve(self, num_bytes: int) -> None:
        """Allocate memory for large checkpoints, during training."""
        if num_bytes >= LEAST_BYTES:
            self._spool().background.reserve(num_bytes)

    def reserve_part(self, number: int, num_bytes: int) -> None:  # noqa: ARG002 - each rank has a store of its own
        """Allocate memory for this rank's parts, during training."""
        self._own_parts().reserve(num_bytes)

    def save(self, checkpoint: Checkpoint, parts: Sequence[PartReceipt] = ()) -> None:
        """Return once `checkpoint` would survive this process.

        It is on this machine's disk, or in memory and on its way.
        """
        self._spool().background.save(checkpoint, parts)

    def _write(self, encoded: EncodedCheckpoint) -> None:
        assert self._opened is not None
        spool = self._opened
        try:
            spool.files.write(encoded)
            mapped = self._mapped(encoded)
        except OSError as error:
            raise self._refused(encoded.step, error) from error
        spool.uploader.offer(mapped)

    def save_part(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        """Return once the part is in memory, from which rank 0 writes it.

        Without such memory, once it is on this machine's disk: all ranks share the folder, and rank 0 uploads it.
        """
        try:
            if can_share():
                return self._own_parts().write(step, number, chunks)
            receipt = write_part(number, chunks, buffer := ReusableBuffer())
            self._spooled.write_part(step, number, buffer.written())
        except OSError as error:
            raise self._refused(step, error) from error
        return receipt

    def _refused(self, step: int, error: OSError) -> WriteFailed:
        """Error for a write that this machine's disk has refused.

        Raises `Fenced` if a later attempt has the run.
        """
        if isinstance(error, FileNotFoundError):
            self._stored.check_fence()  # that attempt, on this machine, has emptied the folder
        return write_failed(
            f"the checkpoint of step {step}",
            str(self._folder),
            error,
            f"It goes from there to {self._stored.uri}, which has those before it: make room or give access, and run "
            "the same name again to continue.",
            is_shared=False,
            step=step,
        )

    def read_part(self, step: int, part: PartFacts) -> Iterable[ReadBytes]:
        """Return readers of this machine's disk and of storage."""
        return [reader for files in (self._spooled, self._stored) for reader in files.part_readers(step, part.number)]

    def newest(self, shards: Collection[int] | None = None, *, before: int | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None.

        It is on this machine's disk or in storage.
        """
        spool = self._spool()
        spool.background.raise_failed(wait=True)
        spool.files.wait_until_written()
        found = [*found_in(spool.files, Tier.THIS_NODE), *found_in(spool.uploader.files)]
        return newest_of(found, shards, before=before)

    def raise_failed(self, *, wait: bool = False) -> None:
        """Raise the error of a checkpoint that could not be written."""
        if self._opened is not None:
            self._opened.background.raise_failed(wait=wait)

    def flush(self) -> None:
        """Return once the newest checkpoint is in storage. Raises `WriteFailed`."""
        spool = self._spool()
        spool.background.raise_failed(wait=True)
        spool.uploader.flush()

    def close(self) -> None:
        """End the uploads.

        The folder stays if storage lacks a part of it.
        """
        if self._part_buffers is not None:
            self._part_buffers.close()
        if self._opened is None:
            return
        self._opened.background.close()
        uploader = self._opened.uploader
        uploader.close()
        if uploader.is_done:
            shutil.rmtree(self._opened.folder, ignore_errors=True)
        self._opened = None

    def _own_parts(self) -> PartBuffers:
        self._part_buffers = self._part_buffers or PartBuffers()
        return self._part_buffers

    def _spool(self) -> _Spool:
        if self._opened is None:
            uploader, folder = Uploader(self._config), self._folder
            wait_until_written(folder)
            self._own(folder, uploader.files.uri)
            background = BackgroundWriter(self._spool_config, self._write)
            self._opened = _Spool(folder=folder, files=self._spooled, uploader=uploader, background=background)
            self._offer_remains()
        return self._opened

    @cached_property
    def _stored(self) -> CheckpointFiles:
        return CheckpointFiles(self._config)

    @cached_property
    def _folder(self) -> Path:
        folder = spool_of(self._stored.uri, self._spools)
        if folder is None:
            raise InvalidOption(
                f"checkpoints wait in {self._spools} for their upload to {self._stored.uri}, and this user has no home "
                "folder. Set HOME.",
                uri=self._stored.uri,
            )
        return folder

    @cached_property
    def _spooled(self) -> CheckpointFiles:
        return CheckpointFiles(self._spool_config)

    @cached_property
    def _spool_config(self) -> CheckpointConfig:
        config = self._config
        return CheckpointConfig(
            uri=str(self._folder),
            keep_last=config.keep_last,
            attempt=config.attempt,
            restorable=config.restorable,
        )

    def _own(self, folder: Path, uri: str) -> None:
        """Empty the folder, unless it is the owner in storage.

        The owner is the folder that was the last to upload checkpoints of the run.
        """
        here, location = folder / OWNER, resolve(below(uri, OWNER))
        owner = here.read_bytes() if here.exists() else b""
        if owner and owner == _read(location.uri):
            return
        try:
            self._stored.check_fence()
        except OSError as error:
            raise write_failed("the owner of the checkpoints", uri, error) from error
        owner = uuid.uuid4().hex.encode()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise write_failed("the checkpoints of this machine", str(folder), error, is_shared=False) from error
        try:
            location.fs.create_dir(location.path.rpartition("/")[0], recursive=True)
            write_atomically(location.uri, owner)
        except OSError as error:
            raise write_failed("the owner of the checkpoints", location.uri, error) from error
        try:
            here.write_bytes(owner)
        except OSError as error:
            raise write_failed("the owner of the checkpoints", str(here), error, is_shared=False) from error

    def _offer_remains(self) -> None:
        """Offer the uploader the checkpoint of a killed process."""
        assert self._opened is not None
        files = self._opened.files
        left = newest_of(found_in(files))
        stored = self._opened.uploader.files.names()
        name = None if left is None else next(each for each in files.names() if each.step == left.step)
        if name is not None and (not stored or name >= stored[0]):
            self._opened.uploader.offer(files.read_saved(name))

    def _mapped(self, encoded: EncodedCheckpoint) -> EncodedCheckpoint:
        """Map the same checkpoint from the disk.

        The buffer is needed for the next one.

        A mapped file stays after its deletion.
        """
        assert self._opened is not None
        folder = Path(self._opened.files.uri_of(encoded.step))
        shards: dict[int, Bytes] = {}
        for number, name in file_names(encoded.metadata).items():
            with (folder / name).open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if _size(file) else b""
                shards[number] = mapped
        return EncodedCheckpoint(metadata=encoded.metadata, shards=shards)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _read(uri: str) -> bytes | None:
    try:
        return read(uri, partial(read_small, resolve(uri)))
    except FileNotFoundError:
        return None
