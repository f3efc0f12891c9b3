"""Checkpoints of a run, and the protocol of their store.

A worker saves them in the store and finds them there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

from forebay.data.plan.cursor import Cursor
from forebay.errors import CursorMismatch
from forebay.runtime.foreign_code import replaced_errors
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import Bytes, CorruptCheckpoint, EncodedCheckpoint, PartFacts, part_facts
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, write_part
from forebay.training.checkpoint.parts.verified_part import ReadBytes
from forebay.training.checkpoint.serialization import LoadableTypes, deserialize, serialize
from forebay.world import World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Position in the data, and all state of the training.

    Training continues from there.

    `world` is the world that saved it. Any other may restore it. `shards` holds one state per shard, by number from 0:
    a model that every rank holds as a whole is one shard. A state holds tensors, numbers, strings, None, and tuples,
    lists and dicts of these. Of a checkpoint in parts, shard 0 holds what no other rank has, and the table of tensors
    in the parts (`forebay.training.checkpoint.parts`). `parts` has the bytes of those that were read. `best` is the
    step of the best evaluation so far, whose checkpoint is kept too.
    """

    step: int
    cursor: Cursor
    world: World
    shards: Mapping[int, Mapping[str, Any]] = field(repr=False)
    parts: Mapping[int, Bytes] = field(default_factory=dict, repr=False)
    best: int | None = None


class CheckpointStore(Protocol):
    """Store of one run's checkpoints.

    A driver makes one per worker process.

    Laws:
    - After `save` has returned, `newest` finds the checkpoint in any later process of the run, even if this process
      dies.
    - A saved checkpoint replaces all of later steps, which belong to an abandoned future.
    - `newest` never returns a corrupt checkpoint, or one that lacks a shard.
    - A saved state may be changed as soon as `save` has returned, although its checkpoint may be written later. An
      error of that is raised by the next call but `close` that waits for it or comes after it.
    - Of a checkpoint in parts, each rank saves its own with `save_part`. Then rank 0 calls `save`, with all receipts.
      Until that returns, the checkpoint before it stands, and no rank calls `save_part` for the next one.
    - Every rank calls `reserve_part`, `save_part` and `read_part`. All other methods are called on rank 0. Calls come
      one at a time, but on several threads.
    - Making a store costs the other ranks nothing.
    """

    def reserve(self, num_bytes: int) -> None:
        """Make memory for checkpoints of about `num_bytes`, without waiting."""

    def reserve_part(self, number: int, num_bytes: int) -> None:
        """Make memory for parts of about `num_bytes`, without waiting.

        `number` is the one of this rank's parts.
        """

    def raise_failed(self, *, wait: bool = False) -> None:
        """Raise the error of a saved checkpoint that could not be written.

        Takes no time, unless it has to `wait` for those that are not written yet.
        """

    def save(self, checkpoint: Checkpoint, parts: Sequence[PartReceipt] = ()) -> None:
        """Return once `checkpoint` and `parts` would survive this process.

        Raises `BadJob` for a state that could not be read back.
        """

    def save_part(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        """Save this rank's part of `step`.

        It survives this process once rank 0's `save` has returned.

        Args:
            step: Step of the checkpoint, later than the newest complete one.
            number: Number of the part, from 1. Each rank has its own.
            chunks: This rank's blocks of tensors, by logical name.
        """
        ...

    def read_part(self, step: int, part: PartFacts) -> Iterable[ReadBytes]:
        """Return readers of a part's spans, the nearest copy first.

        The part is of a complete checkpoint.

        They raise `CorruptCheckpoint` for a copy that is lost.
        """
        ...

    def newest(self, shards: Collection[int] | None = None, *, before: int | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None.

        It is in memory or in storage.

        Args:
            shards: Numbers of the shards to read and verify, as far as the checkpoint has them. None for all.
            before: Leave out this step and later ones. None to leave out none.

        Raises:
            CursorMismatch: It was written by another release of Forebay, in a form this one does not read.
            ReadFailed: Storage does not answer. Going back to an older checkpoint would then be wrong.
        """
        ...

    def flush(self) -> None:
        """Return once the newest saved checkpoint is in storage.

        Raises `WriteFailed` if that is impossible.
        """

    def close(self) -> None:
        """Release all resources. Does not save: call `flush` before."""


class Encoder:
    """Encoder of checkpoints into bytes that can be decoded."""

    def __init__(self) -> None:
        self._loadable = LoadableTypes()

    def encode(
        self, checkpoint: Checkpoint, buffer: ReusableBuffer, parts: Sequence[PartReceipt] = ()
    ) -> EncodedCheckpoint:
        """Write `checkpoint` into `buffer`.

        The result is valid until the buffer is written again.

        It names `parts`, and does not have them. Raises `BadJob` for a state that could not be read back.
        """
        return self.draft(checkpoint, buffer, parts).sealed()

    def draft(
        self, checkpoint: Checkpoint, buffer: ReusableBuffer, parts: Sequence[PartReceipt] = ()
    ) -> EncodedCheckpoint:
        """Like `encode`, without checksums: one copy of the state.

        The state may change from then on.
        """
        buffer.reset()
        spans = {}
        for number, state in sorted(checkpoint.shards.items()):
            begin = buffer.num_bytes
            serialize(state, buffer)
            spans[number] = slice(begin, buffer.num_bytes)
        # Read the buffer only now: it moves when it grows.
        written = buffer.written()
        shards = {number: written[span] for number, span in spans.items()}
        for number, content in shards.items():
            self._loadable.verify(checkpoint.shards[number], content)
        facts = {"step": checkpoint.step, "cursor": checkpoint.cursor.to_json(), "world": asdict(checkpoint.world)}
        return EncodedCheckpoint.draft(
            facts if checkpoint.best is None else facts | {"best": checkpoint.best},
            shards,
            [part.facts for part in parts],
        )


def decode(encoded: EncodedCheckpoint, uri: str) -> Checkpoint:
    """Decode a checkpoint found at `uri`.

    With the shards that `encoded` has.

    Raises `CorruptCheckpoint` if it is not what was encoded. Raises `CursorMismatch` if it is, but cannot be read: an
    older one would be no better.
    """
    encoded.verify()
    with replaced_errors(lambda error: _unreadable(uri, error)):  # Unpicklers raise exceptions of any type.
        raw = part_facts(encoded.metadata)
        shards = {number: deserialize(each) for number, each in encoded.shards.items() if number not in raw}
        parts = {number: each for number, each in encoded.shards.items() if number in raw}
        world = World(**encoded.metadata["world"])
        cursor = Cursor.from_json(encoded.metadata["cursor"])
        step = encoded.step
    return Checkpoint(step=step, cursor=cursor, world=world, shards=shards, parts=parts, best=encoded.best)


def _unreadable(uri: str, error: Exception) -> CursorMismatch:
    return CursorMismatch(
        f"The checkpoint in {uri} is complete, but this release cannot read it "
        f"({str(error).partition(chr(10))[0]:.200}). Use the Forebay and the PyTorch that wrote it, or give the run a "
        "new name."
    )


class DirectoryStore:
    """`CheckpointStore` without memory.

    Every checkpoint is written below `uri` while the worker waits.

    One folder per step: a file per shard, then `checkpoint.json` with sizes and checksums. Raises `InvalidOption` for
    bounds that would keep nothing.
    """

    def __init__(self, uri: str | os.PathLike[str], *, keep_last: int = 2, keep_every: int | None = None) -> None:
        self._files = CheckpointFiles(CheckpointConfig(uri=os.fspath(uri), keep_last=keep_last, keep_every=keep_every))
        self._encoder, self._buffer = Encoder(), ReusableBuffer()

    def reserve(self, num_bytes: int) -> None:
        """Do nothing: the first save makes the memory."""

    def reserve_part(self, number: int, num_bytes: int) -> None:
        """Do nothing, as `reserve`."""

    def raise_failed(self, *, wait: bool = False) -> None:
        """Do nothing: `save` raises."""

    def save(self, checkpoint: Checkpoint, parts: Sequence[PartReceipt] = ()) -> None:
        """Write `checkpoint`, then delete the ones it supersedes.

        Raises `OSError` if storage refuses it.
        """
        self._files.write(self._encoder.encode(checkpoint, self._buffer, parts))

    def save_part(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        """Write the file of a part.

        Raises `OSError` if storage refuses it.
        """
        receipt = write_part(number, chunks, self._buffer)
        self._files.write_part(step, number, self._buffer.written())
        return receipt

    def read_part(self, step: int, part: PartFacts) -> Iterable[ReadBytes]:
        """Return one reader, of the part's file."""
        return self._files.part_readers(step, part.number)

    def newest(self, shards: Collection[int] | None = None, *, before: int | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None.

        Logs and skips corrupt ones.
        """
        return newest_of(found_in(self._files), shards, before=before)

    def flush(self) -> None:
        """Do nothing: every checkpoint was written when it was saved."""

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Tier(IntEnum):
    """Distance of a checkpoint from its reader.

    Of two checkpoints with the same step, the higher tier is read.
    """

    STORAGE = 0
    OTHER_NODE = 1
    THIS_NODE = 2


@dataclass(frozen=True, slots=True, order=True)
class FoundCheckpoint:
    """A checkpoint that seems complete.

    It has a function that reads its requested shards.

    Ordered by attempt, then step: a late upload of an attempt that was taken over is older than all of the next one.
    """

    attempt: int
    step: int
    tier: Tier
    uri: str
    read: Callable[[Collection[int] | None], EncodedCheckpoint] = field(compare=False)


def found_in(files: CheckpointFiles, tier: Tier = Tier.STORAGE) -> list[FoundCheckpoint]:
    """List all checkpoints in a folder, including corrupt ones."""
    return [
        FoundCheckpoint(name.attempt, name.step, tier, files.uri_of_saved(name), partial(files.read_saved, name))
        for name in files.names()
    ]


def newest_of(
    found: Iterable[FoundCheckpoint], shards: Collection[int] | None = None, *, before: int | None = None
) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None.

    Logs and skips corrupt ones, and raises as `decode` does.
    """
    for each in sorted(found, reverse=True):
        if before is not None and each.step >= before:
            continue
        try:
            checkpoint = decode(each.read(shards), each.uri)
        except CorruptCheckpoint as error:
            log.warning("The checkpoint of step %d is corrupt (%s); looking for the one before it.", each.step, error)
            continue
        # A store in memory may have received a later one since it was asked.
        is_later = checkpoint.step > each.step
        if checkpoint.step < each.step or (is_later and each.tier is Tier.STORAGE):
            raise CursorMismatch(
                f"The checkpoint in {each.uri} is of step {checkpoint.step}. Move it back to where it was written.",
                step=each.step,
            )
        return checkpoint
    return None
