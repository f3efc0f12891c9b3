"""Newest checkpoint of a run in one node's memory.

It is kept for the next worker, replicated, and uploaded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from forebay.errors import Fenced, WriteFailed
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint, Metadata, part_facts
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import SavedStep
from forebay.training.checkpoint.shared_buffer import BufferHandle, SharedBuffer
from forebay.training.checkpoint.uploader import Uploader

log = logging.getLogger(__name__)

ShardArrays: TypeAlias = Mapping[int, npt.NDArray[np.uint8]]
"""Serialized shards as they are sent between nodes, by number."""
Replicate = Callable[[EncodedCheckpoint], Awaitable[None]]
"""Function that copies a checkpoint to another node, if there is one. Never raises. Gives up if the node is silent."""


@dataclass(frozen=True, slots=True, order=True)
class StoredStep:
    """Step that a store has.

    Of two stores with the same step, the origin, which a worker wrote to, has precedence.
    """

    step: int
    is_origin: bool
    num_bytes: int = field(default=0, compare=False)
    before: int | None = field(default=None, compare=False)
    """Step of the checkpoint before it, which is kept too if the newest one has parts."""


class MemoryStore:
    """Memory store of one node, independent of Ray.

    It runs as an actor without CPUs, and answers questions for its step at once.

    A worker writes its shards and then the metadata into its buffer, and calls `keep`. The checkpoint is complete as
    soon as the metadata is written: if the worker dies before the call, the store finds it in the buffer. Checksums of
    the shards may be missing, and are computed here. A buffer is handed out again if it is not the newest checkpoint,
    and neither the replica nor an upload reads it. A buffer whose worker ended without metadata is not handed out
    again. So a worker that dies during a write cannot corrupt a later checkpoint, however slowly it dies.
    """

    def __init__(self, uploader: Uploader, replicate: Replicate) -> None:
        self._uploader = uploader
        self._replicate = replicate
        self._buffers: dict[int, SharedBuffer] = {}
        self._numbers = count()
        self._content: dict[int, EncodedCheckpoint] = {}
        self._given: int | None = None
        self._abandoned: int | None = None
        self._filling: set[int] = set()
        self._last_ticket = self._kept_ticket = 0
        self._newest: EncodedCheckpoint | None = None
        self._before: EncodedCheckpoint | None = None
        self._is_origin = False
        self._replicated: EncodedCheckpoint | None = None
        self._replicating: EncodedCheckpoint | None = None
        self._replication = asyncio.Lock()
        self._adopting = threading.Lock()

    async def acquire(self) -> BufferHandle:
        """Return a buffer for a new worker.

        The worker replaces an earlier one that has ended.

        Waits until the checkpoint of the earlier worker is as safe as after `keep`.
        """
        self._adopt_unreported()
        await self._make_safe()
        self._adopt_unreported()  # A worker that has not quite ended may have written meanwhile.
        self._abandon(None if self._given in self._content else self._given)
        self._given = None
        return self._next_handle()

    async def keep(self, number: int) -> BufferHandle:
        """Keep the checkpoint in buffer `number`.

        Returns the buffer for the next one.

        Waits until it has a copy on another node. A worker does not write another one before, so the loss of a node
        loses at most one checkpoint.
        """
        encoded = await self._reported(number)
        # None if its worker was replaced: then its successor has found the checkpoint, if there was one.
        if encoded is not None:
            if encoded is not self._newest:
                self._set_newest(encoded, number, self._ticket(), is_origin=True)
            if number == self._abandoned:
                self._abandoned = None
            else:
                self._abandon(None)
                self._given = None
        await self._make_safe()
        return self._next_handle()

    async def keep_copy(self, metadata: Metadata, shards: ShardArrays) -> None:
        """Keep a copy of another node's newest checkpoint.

        If another checkpoint arrived during the copy, the copy is dropped: the other is newer, and may be this node's
        own.
        """
        self._adopt_unreported()  # A checkpoint that a worker has left here is older.
        ticket, buffer = self._ticket(), self._free_buffer()
        self._filling.add(buffer.number)
        self._content.pop(buffer.number, None)
        buffer.clear()
        encoded = await asyncio.to_thread(self._fill, buffer, metadata, shards)
        if ticket < self._kept_ticket:
            return
        self._uploader.discard()
        self._set_newest(encoded, buffer.number, ticket, is_origin=False)

    async def stored_step(self) -> StoredStep | None:
        """Step of the newest checkpoint, or None."""
        return self._stored_step()

    async def locate(self, step: int | None = None) -> tuple[Metadata, str] | None:
        """Metadata and file of the newest checkpoint.

        For a process of this node.

        With the `step` of the checkpoint before it, that one.
        """
        kept = self._kept(step)
        if kept is None:
            return None
        number = next(number for number, encoded in self._content.items() if encoded is kept)
        return kept.metadata, self._buffers[number].path

    async def fetch(
        self, shards: Collection[int] | None = None, step: int | None = None
    ) -> tuple[Metadata, ShardArrays] | None:
        """Checkpoint that `locate` finds, with its shards.

        The given `shards` as far as it has them, or all.
        """
        kept = self._kept(step)
        if kept is None:
            return None
        asked = kept.shards.items()
        return kept.metadata, {
            number: np.frombuffer(content, np.uint8) for number, content in asked if shards is None or number in shards
        }

    async def flush(self, successor: CheckpointConfig | None = None) -> WriteFailed | Fenced | None:
        """Write the newest checkpoint to storage.

        Returns the error if that fails.

        For the options of a later attempt, the `successor`, as a checkpoint of that attempt.
        """
        self._adopt_unreported()
        newest = self._newest
        if newest is None:
            return None
        if successor is not None:
            return await asyncio.to_thread(self._hand_over, newest, successor)
        if not self._is_origin:
            seen = self._last_ticket
            if await asyncio.to_thread(self._is_in_storage, newest.step):
                return None
            if seen != self._last_ticket:  # another store uploads it, unless a worker here wrote it
                return await self.flush() if self._is_origin else None
        try:
            self._uploader.enqueue(newest)
            await asyncio.to_thread(self._uploader.flush)
        except (WriteFailed, Fenced) as error:
            return error
        return None

    async def yield_storage(self, step: int) -> None:
        """Stop uploading: a worker writes `step` to storage itself.

        That write would delete a later one there. The checkpoint here stays, like a copy, in case the worker dies
        before it has written.
        """
        self._adopt_unreported()
        self._ticket()  # This also ends a flush that is in progress.
        self._uploader.discard()
        self._is_origin = False
        if self._newest is not None and self._newest.step > step:
            self._newest = self._before = None

    def _stored_step(self) -> StoredStep | None:
        self._adopt_unreported()
        newest, before = self._newest, self._before
        if newest is None:
            return None
        return StoredStep(newest.step, self._is_origin, newest.num_bytes, None if before is None else before.step)

    def _kept(self, step: int | None) -> EncodedCheckpoint | None:
        self._adopt_unreported()
        before = self._before
        return before if before is not None and before.step == step else self._newest

    def _adopt_unreported(self) -> None:
        """Keep a complete checkpoint that was not reported.

        Its worker has not called `keep`, because it is late or dead.

        It is in the buffer that was handed out, or in the buffer of a worker that was taken for dead.
        """
        with self._adopting:
            for number in (self._abandoned, self._given):
                if number is not None and number not in self._content and (encoded := self._complete_in(number)):
                    self._set_newest(encoded, number, self._ticket(), is_origin=True)

    def _complete_in(self, number: int) -> EncodedCheckpoint | None:
        """Complete checkpoint in buffer `number`, or None.

        If its worker was taken for dead, it must be newer.
        """
        try:
            encoded = self._buffers[number].read()
            if encoded is None:
                return None
            encoded = encoded.sealed()
            encoded.verify()
        except CorruptCheckpoint as error:
            log.warning("What a worker has left in memory is not a checkpoint (%s).", error)
            return None
        is_news = self._newest is None or encoded.step > self._newest.step
        return encoded if is_news or number == self._given else None

    async def _reported(self, number: int) -> EncodedCheckpoint | None:
        """Checkpoint in buffer `number`, or None.

        The buffer must still belong to the worker that reports it. Checksums are computed here: the worker trains on.
        """
        if number not in (self._given, self._abandoned):
            return None
        written = self._content.get(number) or self._buffers[number].read()
        if written is None:
            return None
        sealed = await asyncio.to_thread(written.sealed)
        # Meanwhile it may have been adopted, or its worker replaced.
        return self._content.get(number, sealed) if number in (self._given, self._abandoned) else None

    def _abandon(self, number: int | None) -> None:
        """Do not use buffer `number` again.

        A worker that should have ended may still write to it.

        It is released when the worker's successor has a checkpoint. Until then the successor may end first.
        """
        if self._abandoned is not None and self._abandoned not in self._content:
            del self._buffers[self._abandoned]
        self._abandoned = number

    async def _make_safe(self) -> None:
        """Make the newest checkpoint safe.

        It is then queued for storage and has its copy on another node.
        """
        if self._newest is not None and self._is_origin:
            # Not in the thread: there it could come after a call that discards it.
            self._uploader.enqueue(self._newest)
            # Waits if storage is slower than the rate of permanent checkpoints.
            await asyncio.gather(
                asyncio.to_thread(self._uploader.wait_for_room, self._newest), self._replicate_newest()
            )

    async def _replicate_newest(self) -> None:
        """Copy the newest checkpoint to another node, if any."""
        async with self._replication:
            newest = self._newest
            if newest is None or newest is self._replicated or not self._is_origin:
                return
            self._replicating = newest
            await self._replicate(newest)
            self._replicated, self._replicating = newest, None

    def _next_handle(self) -> BufferHandle:
        # There is one if a new worker has come meanwhile. Then this answer is for a worker that has ended.
        if self._given is None:
            buffer = self._free_buffer()
            self._content.pop(buffer.number, None)
            buffer.clear()
            self._given = buffer.number
        return self._buffers[self._given].handle

    def _ticket(self) -> int:
        """Number of a checkpoint or copy in order of arrival.

        Copies do not finish in this order.
        """
        self._last_ticket += 1
        return self._last_ticket

    def _set_newest(self, encoded: EncodedCheckpoint, number: int, ticket: int, *, is_origin: bool) -> None:
        self._content[number] = encoded
        earlier = self._newest
        # A node may be lost before parts have their copies. Then the checkpoint before this one is restored.
        is_followed = earlier is not None and earlier.step < encoded.step and bool(part_facts(encoded.metadata))
        self._before = earlier if is_followed else None
        self._newest, self._is_origin, self._kept_ticket = encoded, is_origin, ticket

    def _fill(self, buffer: SharedBuffer, metadata: Metadata, shards: ShardArrays) -> EncodedCheckpoint:
        try:
            return buffer.fill(metadata, {number: array.data for number, array in shards.items()})
        finally:
            # Here, not in the caller: after a cancelled call this thread is still writing.
            self._filling.discard(buffer.number)

    def _free_buffer(self) -> SharedBuffer:
        in_use = [*self._uploader.in_use(), self._newest, self._before, self._replicating]
        for buffer in self._buffers.values():
            content = self._content.get(buffer.number)
            is_written = buffer.number in (self._given, self._abandoned) or buffer.number in self._filling
            if not is_written and (content is None or content not in in_use):
                return buffer
        buffer = SharedBuffer(next(self._numbers))
        self._buffers[buffer.number] = buffer
        return buffer

    def _hand_over(self, newest: EncodedCheckpoint, successor: CheckpointConfig) -> WriteFailed | Fenced | None:
        files = CheckpointFiles(successor)
        try:
            if not _is_stored(files, files.names(), newest.step):
                self._uploader.hand_over(newest, successor)
        except (WriteFailed, Fenced) as error:
            return error
        return None

    def _is_in_storage(self, step: int) -> bool:
        """Whether storage has a complete checkpoint from `step` on.

        A copy must not replace a later one.
        """
        files = self._uploader.files
        return _is_stored(files, files.own_names(), step)


def _is_stored(files: CheckpointFiles, names: Iterable[SavedStep], step: int) -> bool:
    """Whether a checkpoint of `step` or later is complete.

    `names` are those to look at, the newest first.
    """
    for name in names:
        if name.step < step:
            return False
        try:
            files.read_saved(name).verify()
        except CorruptCheckpoint:
            continue
        return True
    return False
