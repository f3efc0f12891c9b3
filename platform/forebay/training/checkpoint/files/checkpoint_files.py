"""Checkpoints in storage, one folder per step.

Independent of their content, so it needs no PyTorch.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pyarrow.fs import FileType

from forebay.errors import CursorMismatch, ReadFailed
from forebay.storage.atomic import is_there, read_small, write_atomically
from forebay.storage.credentials import redacting
from forebay.storage.filesystem import Location, below, resolve
from forebay.storage.globs import children
from forebay.storage.retry import ReadPolicy, read
from forebay.training.checkpoint.config import FOLDER, CheckpointConfig
from forebay.training.checkpoint.encoded import (
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
    verify_metadata,
    verify_shard,
)
from forebay.training.checkpoint.files.claim import (
    ATTEMPTS,
    REMEDY,
    ClaimGone,
    check_own,
    fenced_error,
    is_gone_too_long,
    newest_number,
    read_claim,
)
from forebay.training.checkpoint.files.names import (
    STEP_FORM,
    SavedStep,
    file_names,
    lineage,
    part_file,
    saved_step,
    title_of,
)
from forebay.training.checkpoint.files.pending import WRITING, wait_until_written

SPOOLS = "~/.cache/forebay-checkpoints"

# A state of many gigabytes takes minutes.
READ_POLICY = ReadPolicy(deadline_s=900.0)
AGAIN_S = 1.0
_PIECE_BYTES = 8 << 20

T = TypeVar("T")

log = logging.getLogger(__name__)


def spool_of(uri: str, spools: str | None = None) -> Path | None:
    """Folder on this machine's disk before an upload to `uri`.

    For checkpoints of a local run. None if this user has no home folder.
    """
    try:
        return Path(spools or SPOOLS).expanduser() / hashlib.sha256(uri.encode()).hexdigest()[:16]
    except RuntimeError:
        return None


class CheckpointFiles:
    """Checkpoints below one URI, a folder for each step.

    It holds `shard-00000.pt` and so on, then `checkpoint.json`. A step without the latter is incomplete.

    Attempts from the second on have their number before the step, so that a late write of an attempt that was taken
    over replaces nothing. An attempt restores its own checkpoints, and those of earlier ones that were complete when it
    was claimed. A reader sees what the newest attempt may restore (`readable_checkpoints`). With neither, all are seen.
    Those written without an attempt have plain names.

    Of a checkpoint in parts, each rank writes the file `part-00001` and so on of its own. Then `write` adds the rest.
    One process writes at a time, with one exception: a store that is about to be replaced, and its successor. So a
    write does not delete later steps that appeared during it. There is no fsync: checksums find data corrupted by a
    crash of the machine, and the previous checkpoint is still there.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._location = resolve(config.uri)
        self._fs = self._location.fs

    @property
    def uri(self) -> str:
        """URI of the folder, without credentials."""
        return self._location.uri

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's file systems."""
        return self._location.is_local

    def check_fence(self) -> None:
        """Raise `Fenced` if another attempt has the run.

        Raises `OSError` if storage does not answer, and if the own claim is missing.
        """
        claim = self._config.next_claim
        if claim is not None and is_there(claim):
            raise fenced_error(claim, self._own)
        self._check_own()

    def _check_own(self) -> None:
        if self._config.own_claim is not None:
            check_own(self._config.own_claim, self._own, self._config.token)

    @property
    def _own(self) -> int:
        return 1 if self._config.attempt is None else self._config.attempt

    def wait_until_written(self) -> None:
        """Wait until no process has an unwritten checkpoint in memory.

        Only a folder on this machine is written from memory without a store of its own.
        """
        if self.is_local and (Path(self._location.path) / WRITING).exists():
            wait_until_written(self._location.path)

    def with_claim(self, write: Callable[[], T]) -> T:
        """Write while the claim is there.

        It may vanish during the write, which looks for it again, for a limited time. Raises `Fenced` and `OSError`.
        """
        began = time.monotonic()
        while True:
            try:
                self.check_fence()
                return write()
            except ClaimGone as error:
                if is_gone_too_long(began):
                    raise
                log.warning("A checkpoint waits: %s.", error)
            time.sleep(AGAIN_S)

    def write(self, encoded: EncodedCheckpoint) -> None:
        """Write a checkpoint, then delete the steps it supersedes.

        Raises `OSError`.

        Parts that `encoded` does not have were written before. Deletes nothing and raises `Fenced` if a later attempt
        has taken over meanwhile.
        """
        self._check_own()
        if part_facts(encoded.metadata).keys() - encoded.shards.keys():
            self._seal(encoded)
            return
        there_before = set(self._all_names())
        folder = self._folder(encoded.step)
        if self._fs.get_file_info(folder).type != FileType.NotFound:
            self._delete(SavedStep(self._own, encoded.step))
        self._create(folder)
        self._write_shards(encoded)
        self._retain(encoded, there_before)

    def write_part(self, step: int, number: int, content: Bytes) -> None:
        """Write part `number` of a checkpoint. Raises `OSError`.

        The checkpoint is sealed later, in any process.
        """
        self._check_own()
        folder = self._folder(step)
        self._create(folder)
        # What lies here is corrupt, or of a future that was given up. It must not be complete with another part.
        with suppress(FileNotFoundError):
            if self._exists(f"{folder}/{METADATA}"):
                self._fs.delete_file(f"{folder}/{METADATA}")
        self._write(f"{folder}/{part_file(number)}", content)

    def has_part(self, step: int, part: PartFacts) -> bool:
        """Whether a file has the part's name and size."""
        info = self._fs.get_file_info(f"{self._folder(step)}/{part_file(part.number)}")
        return bool(info.type == FileType.File and info.size == part.num_bytes)

    def _seal(self, encoded: EncodedCheckpoint) -> None:
        there_before = set(self._all_names())
        names = {*file_names(encoded.metadata).values(), METADATA}
        for info in children(self._fs, self._folder(encoded.step)):
            if info.base_name not in names:  # a part of an earlier, larger world
                self._fs.delete_file(info.path)
        self._write_shards(encoded)
        self._retain(encoded, there_before)

    def part_readers(self, step: int, number: int) -> list[Callable[[int, int], bytes]]:
        """Readers of spans of part `number`, newest attempt first.

        There is one for each attempt that may have it.

        They raise `CorruptCheckpoint` if it is missing, and `ReadFailed`.
        """
        attempts = [self._saved(step).attempt]
        if self._own > 1:
            attempts += [name.attempt for name in self.names() if name.step == step and name.attempt != self._own]
        return [partial(self._read_part, SavedStep(attempt, step), number) for attempt in attempts]

    def _read_part(self, name: SavedStep, number: int, begin: int, end: int) -> bytes:
        return self._read(name, part_file(number), slice(begin, end))

    def _write_shards(self, encoded: EncodedCheckpoint) -> None:
        folder, names = self._folder(encoded.step), file_names(encoded.metadata)
        for number, content in encoded.shards.items():
            self._write(f"{folder}/{names[number]}", content)
        # Again: the shards of a large state take minutes, and another start may have the folder now.
        self._check_own()
        # Last: without it the checkpoint is incomplete.
        self._write(f"{folder}/{METADATA}", encoded.metadata_bytes)

    def read(self, step: int, shards: Collection[int] | None = None) -> EncodedCheckpoint:
        """Read a step of `steps()`, as `read_saved` does."""
        return self.read_saved(self._saved(step), shards)

    def read_saved(self, name: SavedStep, shards: Collection[int] | None = None) -> EncodedCheckpoint:
        """Read a checkpoint. Does not verify checksums.

        Reads the given `shards` as far as it has them, or all.

        Raises:
            CorruptCheckpoint: A file is missing, even of a shard that is not read.
            ReadFailed: Storage does not answer.
            CursorMismatch: The checkpoint was written by another release.
        """
        metadata = parse_metadata(self._read(name, METADATA))
        if metadata.get("version", VERSION) != VERSION:
            raise CursorMismatch(
                f"The checkpoint in {self.uri_of_saved(name)} has version {metadata['version']}; this release reads "
                f"version {VERSION}. Use the Forebay that wrote it, or give the run a new name.",
                step=name.step,
            )
        verify_metadata(metadata)
        content = {}
        for number, file in file_names(metadata).items():
            if shards is None or number in shards:
                content[number] = self._read(name, file)
            elif not self._exists(f"{self._location.path}/{title_of(name)}/{file}"):
                raise CorruptCheckpoint(f"it has no {file}")
        return EncodedCheckpoint(metadata=metadata, shards=content)

    @contextmanager
    def verified_shard(self, step: int, number: int, metadata: Metadata) -> Iterator[Path]:
        """Give a verified shard as a file on this machine.

        It is the file itself, or a copy for the block.

        Needs little memory. Raises `CorruptCheckpoint` and `ReadFailed`.
        """
        name, folder = file_names(metadata)[number], title_of(self._saved(step))
        path = f"{self._location.path}/{folder}/{name}"
        with ExitStack() as copied:
            target = None if self.is_local else Path(copied.enter_context(TemporaryDirectory(prefix="forebay-"))) / name
            try:
                sums = read(f"{self.uri}/{folder}/{name}", lambda: self._copy(path, target), READ_POLICY)
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

    def names(self) -> list[SavedStep]:
        """Restorable checkpoints that have a folder, newest first."""
        return self._restorable(self._all_names())

    def complete_names(self) -> list[SavedStep]:
        """Checkpoints of `names()` that were written completely.

        A crash may have corrupted one of them since.
        """
        return [name for name in self.names() if self._is_complete(name)]

    def _restorable(self, names: list[SavedStep]) -> list[SavedStep]:
        """Checkpoints among `names` that this attempt may restore.

        It wrote them, or they were there when it was claimed.
        """
        pinned = self._config.restorable
        if pinned is None:
            return names
        # A reader takes what attempts have written that came after its look at the claims.
        first = self._config.attempt or self._config.claimed
        own = [name for name in names if name.attempt >= first]
        earlier = [name for name in names if name.attempt < first]
        kept = [name for name in earlier if title_of(name) in pinned]
        newest = max((saved_step(each) for each in pinned), default=None)
        if newest is None or newest in earlier or any(self._is_complete(name) for name in own):
            return [*own, *kept]
        # The earlier attempt has deleted it between the listing and the claim. It does so only if it finds no claim
        # after a later one is complete: the oldest of those was complete before the claim.
        later = [name for name in earlier if name > newest and self._is_complete(name)]
        return [*own, *later[-1:], *kept]

    def _all_names(self) -> list[SavedStep]:
        """Checkpoints up to this attempt with a folder, newest first."""
        try:
            found = children(self._fs, self._location.path)
        except FileNotFoundError:  # pyarrow looks twice. The folder was made in between, and counts as empty.
            found = []
        if not found:
            self._check_is_empty()
        folders = [info.base_name for info in found if info.type == FileType.Directory]
        saved = [saved_step(name) for name in folders if STEP_FORM.fullmatch(name)]
        last = self._config.attempt
        return sorted((name for name in saved if last is None or name.attempt <= last), reverse=True)

    def _check_is_empty(self) -> None:
        """Raise `ReadFailed` if the claim is missing, too.

        A share that is not mounted looks empty, and training would begin again.
        """
        try:
            self._check_own()
        except ClaimGone as error:
            raise ReadFailed(f"The checkpoints in {self.uri} cannot be found: {error}. {REMEDY}") from None

    def steps(self) -> list[int]:
        """Steps of this attempt that have a folder, newest first.

        Without an attempt, the steps of the newest lineage.
        """
        return [name.step for name in self.own_names()]

    def own_names(self) -> list[SavedStep]:
        """Checkpoints whose steps are `steps()`."""
        if self._config.attempt is None:
            return lineage(self.names())
        return [name for name in self.names() if name.attempt == self._own]

    def complete_steps(self) -> list[int]:
        """Steps of `steps()` that were written completely.

        A crash may have corrupted one of them since.
        """
        if self._config.attempt is None:
            return [name.step for name in lineage([name for name in self.names() if self._is_complete(name)])]
        return [step for step in self.steps() if self._is_complete(SavedStep(self._own, step))]

    def uri_of(self, step: int) -> str:
        """URI of a step of `steps()`, for messages."""
        return self.uri_of_saved(self._saved(step))

    def uri_of_saved(self, name: SavedStep) -> str:
        """URI of a checkpoint, for messages."""
        return f"{self.uri}/{title_of(name)}"

    def _saved(self, step: int) -> SavedStep:
        own = SavedStep(self._own, step)
        if self._config.attempt is not None:
            return own
        return next((name for name in self.names() if name.step == step and self._is_complete(name)), own)

    def _is_complete(self, name: SavedStep) -> bool:
        return self._exists(f"{self._location.path}/{title_of(name)}/{METADATA}")

    def _retain(self, encoded: EncodedCheckpoint, there_before: set[SavedStep]) -> None:
        # After the write: a later attempt restores what was there when it claimed the run.
        self.check_fence()
        newest = encoded.step
        # Delete later steps first: as long as they exist, they would be taken for the newest.
        names = [name for name in self._all_names() if name.attempt <= self._own]
        ours = set(self._restorable(names))
        past = lineage([name for name in names if name in ours and name.step <= newest and self._is_complete(name)])
        steps = self._config.superseded([name.step for name in past], newest, encoded.best)
        superseded = {name for name in past if name.step in steps} | (set(names) - set(past)) & there_before
        for name in sorted(superseded, reverse=True):
            self._delete(name)

    def _delete(self, name: SavedStep) -> None:
        folder = f"{self._location.path}/{title_of(name)}"
        # Delete the metadata first: an interrupted deletion must leave an incomplete checkpoint.
        if self._exists(f"{folder}/{METADATA}"):
            self._fs.delete_file(f"{folder}/{METADATA}")
        self._fs.delete_dir(folder)

    def _create(self, folder: str) -> None:
        """Create the folder of a step.

        Of an attempt, on a local disk, not the folder of its run: a share that was unmounted leaves an empty folder.
        """
        if self._config.own_claim is None or not self.is_local:
            self._fs.create_dir(folder, recursive=True)
            return
        for path in (self._location.path, folder):
            Path(path).mkdir(exist_ok=True)

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == FileType.File)

    def _read(self, name: SavedStep, file: str, span: slice | None = None) -> bytes:
        location = self._location.child(f"{title_of(name)}/{file}")
        try:
            return read(location.uri, partial(_contents, location, span), READ_POLICY)
        except FileNotFoundError:
            raise CorruptCheckpoint(f"it has no {file}") from None

    def _write(self, path: str, contents: Bytes) -> None:
        """Write a file. The one that makes a checkpoint complete appears whole: its readers may come meanwhile."""
        if path.endswith(f"/{METADATA}"):
            write_atomically(self._location.child(path.removeprefix(f"{self._location.path}/")), bytes(contents))
            return
        with redacting(), self._fs.open_output_stream(path) as stream:
            stream.write(contents)

    def _folder(self, step: int) -> str:
        return f"{self._location.path}/{title_of(SavedStep(self._own, step))}"


def readable_checkpoints(run: str) -> CheckpointFiles:
    """Stored checkpoints of the run in folder `run`, for readers.

    A reader is not an attempt of the run.

    Those that the newest attempt wrote or may restore: none that an earlier one wrote after it was taken over.
    Raises `InvalidOption` if its claim is damaged. Waits for a checkpoint that is in memory, and on its way to a folder
    of this machine.
    """
    config, attempts = CheckpointConfig(uri=below(run, FOLDER)), resolve(below(run, ATTEMPTS))
    number = newest_number(attempts)
    claim = None if number is None else read_claim(attempts, number)
    if claim is not None and claim.restorable is not None:
        config = replace(config, claimed=claim.number, restorable=frozenset(claim.restorable))
    files = CheckpointFiles(config)
    files.wait_until_written()
    return files


def _contents(location: Location, span: slice | None) -> bytes:
    if span is None:
        return read_small(location)
    with location.fs.open_input_file(location.path) as file:
        return bytes(file.read_at(span.stop - span.start, span.start))
