"""Checkpoints in storage, one folder per step. Independent of their content, so it needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pyarrow.fs import FileType

from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import (
    METADATA,
    VERSION,
    Bytes,
    CorruptCheckpoint,
    EncodedCheckpoint,
    Metadata,
    PartFacts,
    ShardSums,
    parse_metadata,
    part_facts,
    shard_sizes,
    verify_metadata,
    verify_shard,
)
from forebay.errors import CursorMismatch
from forebay.storage.credentials import redacting
from forebay.storage.filesystem import resolve
from forebay.storage.listing.globs import children
from forebay.storage.retry import ReadPolicy, read

STEP_FORM = re.compile(r"step-(\d{9,})")

# A state of many gigabytes takes minutes.
READ_POLICY = ReadPolicy(deadline_s=900.0)
_PIECE_BYTES = 8 << 20


def shard_file(number: int) -> str:
    """Name of the file of a shard, within the checkpoint's folder."""
    return f"shard-{number:05d}.pt"


def part_file(number: int) -> str:
    """Name of the file of a part, within the checkpoint's folder."""
    return f"part-{number:05d}"


def file_names(metadata: Metadata) -> dict[int, str]:
    """Name of the file of every shard, by number. Raises `CorruptCheckpoint`."""
    parts = part_facts(metadata)
    return {number: (part_file if number in parts else shard_file)(number) for number in shard_sizes(metadata)}


class CheckpointFiles:
    """Folder per step: `shard-00000.pt` and so on, then `checkpoint.json`. A step without the latter is incomplete.

    Of a checkpoint in parts, each rank writes the file `part-00001` and so on of its own. Then `write` adds the rest.
    One process writes at a time, with one exception: a store that is about to be replaced, and its successor. So a
    write does not delete later steps that appeared during it. There is no fsync: checksums find data corrupted by a
    crash of the machine, and the previous checkpoint is still there.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._place = resolve(config.uri)
        self._fs = self._place.fs

    @property
    def uri(self) -> str:
        """URI of the folder, without credentials."""
        return self._place.uri

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a file system of this machine."""
        return self._place.is_local

    def write(self, encoded: EncodedCheckpoint) -> None:
        """Write a checkpoint, then delete the steps it supersedes. Raises `OSError`.

        Parts that `encoded` does not have were written before.
        """
        if part_facts(encoded.metadata).keys() - encoded.shards.keys():
            self._seal(encoded)
            return
        there_before = set(self.steps())
        folder = self._folder(encoded.step)
        if self._fs.get_file_info(folder).type != FileType.NotFound:
            self._delete(encoded.step)
        self._fs.create_dir(folder, recursive=True)
        self._write_shards(encoded)
        self._retain(encoded.step, there_before)

    def write_part(self, step: int, number: int, content: Bytes) -> None:
        """Write part `number` of a checkpoint that is sealed later, in any process. Raises `OSError`."""
        folder = self._folder(step)
        self._fs.create_dir(folder, recursive=True)
        # What lies here is corrupt, or of a future that was given up. It must not be complete with another part.
        with suppress(FileNotFoundError):
            if self._exists(f"{folder}/{METADATA}"):
                self._fs.delete_file(f"{folder}/{METADATA}")
        self._write(f"{folder}/{part_file(number)}", content)

    def has_part(self, step: int, part: PartFacts) -> bool:
        """Whether a file has the name and the size of this part."""
        info = self._fs.get_file_info(f"{self._folder(step)}/{part_file(part.number)}")
        return bool(info.type == FileType.File and info.size == part.num_bytes)

    def _seal(self, encoded: EncodedCheckpoint) -> None:
        there_before = set(self.steps())
        names = {*file_names(encoded.metadata).values(), METADATA}
        for info in children(self._fs, self._folder(encoded.step)):
            if info.base_name not in names:  # a part of an earlier, larger world
                self._fs.delete_file(info.path)
        self._write_shards(encoded)
        self._retain(encoded.step, there_before)

    def read_part(self, step: int, number: int, begin: int, end: int) -> bytes:
        """Return bytes `begin` to `end` of a part. Raises `CorruptCheckpoint` if it is missing, and `ReadFailed`."""
        return self._read(step, part_file(number), slice(begin, end))

    def _write_shards(self, encoded: EncodedCheckpoint) -> None:
        folder, names = self._folder(encoded.step), file_names(encoded.metadata)
        for number, content in encoded.shards.items():
            self._write(f"{folder}/{names[number]}", content)
        # Last: without it the checkpoint is incomplete.
        self._write(f"{folder}/{METADATA}", encoded.metadata_bytes)

    def read(self, step: int, shards: Collection[int] | None = None) -> EncodedCheckpoint:
        """Read a checkpoint with those of `shards` that it has, or all. Does not verify checksums.

        Raises:
            CorruptCheckpoint: A file is missing, even of a shard that is not read.
            ReadFailed: Storage does not answer.
            CursorMismatch: The checkpoint was written by another release.
        """
        metadata = parse_metadata(self._read(step, METADATA))
        if metadata.get("version", VERSION) != VERSION:
            raise CursorMismatch(
                f"The checkpoint in {self.uri_of(step)} has version {metadata['version']}; this release reads version "
                f"{VERSION}. Use the Forebay that wrote it, or give the run a new name.",
                step=step,
            )
        verify_metadata(metadata)
        content = {}
        for number, name in file_names(metadata).items():
            if shards is None or number in shards:
                content[number] = self._read(step, name)
            elif not self._exists(f"{self._folder(step)}/{name}"):
                raise CorruptCheckpoint(f"it has no {name}")
        return EncodedCheckpoint(metadata=metadata, shards=content)

    @contextmanager
    def verified_shard(self, step: int, number: int, metadata: Metadata) -> Iterator[Path]:
        """Give the file of a shard, whose checksum is right, on this machine: the file itself, or a copy for the block.

        Needs little memory. Raises `CorruptCheckpoint` and `ReadFailed`.
        """
        name = file_names(metadata)[number]
        path = f"{self._folder(step)}/{name}"
        with ExitStack() as copied:
            target = None if self.is_local else Path(copied.enter_context(TemporaryDirectory(prefix="forebay-"))) / name
            try:
                sums = read(f"{self.uri_of(step)}/{name}", lambda: self._copy(path, target), READ_POLICY)
            except FileNotFoundError:
                raise CorruptCheckpoint(f"it has no {name}") from None
            verify_shard(metadata, number, sums)
            yield target or Path(path)

    def _copy(self, path: str, target: Path | None) -> ShardSums:
        sums = ShardSums()
        with ExitStack() as files:
            stream = files.enter_context(self._fs.open_input_stream(path, compression=None))
            out = None if target is None else files.enter_context(target.open("wb"))
            while piece := stream.read(_PIECE_BYTES):
                sums.add(piece)
                if out is not None:
                    out.write(piece)
        return sums

    def steps(self) -> list[int]:
        """Steps that have a folder, newest first."""
        try:
            found = children(self._fs, self._place.path)
        except FileNotFoundError:  # pyarrow looks twice. The folder was made in between, and counts as empty.
            return []
        names = [STEP_FORM.fullmatch(info.base_name) for info in found if info.type == FileType.Directory]
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def complete_steps(self) -> list[int]:
        """Steps that were written completely, newest first. A crash may have corrupted one of them since."""
        return [step for step in self.steps() if self._exists(f"{self._folder(step)}/{METADATA}")]

    def uri_of(self, step: int) -> str:
        """URI of a checkpoint, for messages."""
        return f"{self.uri}/{_name(step)}"

    def _retain(self, newest: int, there_before: set[int]) -> None:
        # Delete later steps first: as long as they exist, they would be taken for the newest.
        steps = self.steps()
        complete = [step for step in steps if step <= newest and self._exists(f"{self._folder(step)}/{METADATA}")]
        later_or_incomplete = (set(steps) - set(complete)) & there_before
        superseded = self._config.superseded(complete, newest) | later_or_incomplete
        for step in sorted(superseded, reverse=True):
            self._delete(step)

    def _delete(self, step: int) -> None:
        folder = self._folder(step)
        # Delete the metadata first: an interrupted deletion must leave an incomplete checkpoint.
        if self._exists(f"{folder}/{METADATA}"):
            self._fs.delete_file(f"{folder}/{METADATA}")
        self._fs.delete_dir(folder)

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == FileType.File)

    def _read(self, step: int, name: str, span: slice | None = None) -> bytes:
        path = f"{self._folder(step)}/{name}"
        try:
            return read(f"{self.uri_of(step)}/{name}", lambda: self._contents(path, span), READ_POLICY)
        except FileNotFoundError:
            raise CorruptCheckpoint(f"it has no {name}") from None

    def _contents(self, path: str, span: slice | None) -> bytes:
        if span is None:
            with self._fs.open_input_stream(path) as stream:
                return bytes(stream.read())
        with self._fs.open_input_file(path) as file:
            return bytes(file.read_at(span.stop - span.start, span.start))

    def _write(self, path: str, contents: Bytes) -> None:
        with redacting(), self._fs.open_output_stream(path) as stream:
            stream.write(contents)

    def _folder(self, step: int) -> str:
        return f"{self._place.path}/{_name(step)}"


def _name(step: int) -> str:
    return f"step-{step:09d}"
