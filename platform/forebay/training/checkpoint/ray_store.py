"""`CheckpointStore` for workers on Ray.

Checkpoints go to the memory of their node, to a copy on another node, and to storage at intervals.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from forebay.errors import Fenced, LimitReached, ReadFailed, WriteFailed
from forebay.runtime.foreign_code import OutcomeThread, begin
from forebay.storage.atomic import ADVICE, write_failed
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import Checkpoint, Encoder, FoundCheckpoint, Tier, found_in, newest_of
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint, PartFacts
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.memory_store import StoredStep
from forebay.training.checkpoint.memory_store_actor import (
    REPLICATE_BYTES_PER_S,
    Stores,
    end_stores,
    flush_newest,
    has_stores,
    make_store,
    stored_steps,
    stores_of,
    upload_parts_of,
    yield_storage,
)
from forebay.training.checkpoint.part_memory.actor import StoreOwner, is_alive
from forebay.training.checkpoint.part_memory.client import PartMemory
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, write_part
from forebay.training.checkpoint.parts.verified_part import ReadBytes
from forebay.training.checkpoint.serialization import gpu_of_thread, lock_pages
from forebay.training.checkpoint.shared_buffer import (
    BufferHandle,
    SharedBufferClient,
    read_shared_buffer,
)

START_S = 15.0
KEEP_S = 30.0
READ_S = 30.0
FLUSH_S = 900.0
LEAST_TOUCHED = 16 << 20
"""Bytes. Fewer pages are made during the copy."""

log = logging.getLogger(__name__)


def open_ray_checkpoints(run: str, config: CheckpointConfig, coordinator: ActorHandle) -> RayCheckpointStore:
    """Open the store of `run` in a worker process.

    `coordinator` is the actor that ends with the run.
    """
    return RayCheckpointStore(StoreOwner(run=run, config=config, coordinator=coordinator))


@contextmanager
def checkpoint_stores(
    run: str, config: CheckpointConfig, has_successor: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """End a run's memory stores before and after the block.

    On the driver. No checkpoint is lost with them.

    Stores from before the block belong to a driver that was killed. What they have is written as checkpoint of the
    attempt of `config`: it restores nothing that an earlier one writes after its claim.
    """
    end_stores(run, config)
    try:
        yield
    finally:
        try:
            if not has_successor():
                end_stores(run)
        except RayError as error:  # The cluster no longer exists. If it does, the stores end with the coordinator.
            log.warning(
                "The memory stores of the run's checkpoints could not be reached, and may still run (%s).",
                type(error).__name__,
            )


def flush_stores(run: str) -> None:
    """Write the newest checkpoint to storage.

    On the driver, at a drain notice. A failed write is logged.
    """
    if error := flush_newest(run):
        log.warning("%s", error)


class RayCheckpointStore:
    """`CheckpointStore` in the memory of this node.

    If that is lost, checkpoints go to storage, with a warning.

    A worker whose coordinator is dead too is an orphan of a killed driver. It ends this process, because its
    checkpoints would damage a continuation of the run elsewhere.
    """

    def __init__(self, owner: StoreOwner) -> None:
        self._owner = owner
        self._files = CheckpointFiles(owner.config)
        self._node = ray.get_runtime_context().get_node_id()
        self._encoder = Encoder()
        self._part_memory = PartMemory(owner, self._node, has_stores)
        self._store: ActorHandle | None = None
        self._pending: Any = None
        self._handle: BufferHandle | None = None
        self._client: SharedBufferClient | None = None
        self._own_buffer = ReusableBuffer()
        self._wait_s = 0.0
        self._is_starting = True
        self._saved: EncodedCheckpoint | None = None
        self._stored: EncodedCheckpoint | None = None
        self._latest: int | None = None
        self._reserving: OutcomeThread[None] | None = None

    def reserve(self, num_bytes: int) -> None:
        """Allocate memory in this node's store, during training."""
        self._reserved()
        if num_bytes >= LEAST_TOUCHED and self._pending is not None:
            with suppress(LimitReached):  # then the first checkpoint allocates it
                touch = partial(self._touch, num_bytes, gpu_of_thread())
                self._reserving = begin(OutcomeThread(touch, "forebay-reserve"))

    def reserve_part(self, number: int, num_bytes: int) -> None:
        """Allocate memory in this node's store of parts, during training."""
        self._part_memory.reserve(number, num_bytes)

    def raise_failed(self, *, wait: bool = False) -> None:
        """Do nothing: `save` raises, or storage at a flush."""

    def save(self, checkpoint: Checkpoint, parts: Sequence[PartReceipt] = ()) -> None:
        """Keep `checkpoint` in the memory of this node.

        Returns once the previous one is also on another node.

        The store may not have noticed it yet: it looks for it before it answers any question. Parts are in the memory
        of the nodes that wrote them.
        """
        self._reserved()
        before, self._saved = self._saved, None
        goes_on = self._latest is not None and checkpoint.step > self._latest
        handle, buffer = self._open_buffer()
        # The store computes the checksums, beside training.
        encoded = self._encoder.draft(checkpoint, buffer, parts)
        self._latest = checkpoint.step
        if handle is None or not self._hand_over(handle, encoded, goes_on=goes_on):
            self._save_to_storage(encoded, before)
        self._saved = encoded
        self.reserve(encoded.num_bytes)

    def save_part(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        """Keep the part in the memory of this node.

        Returns once the previous one is also on another node.

        If this memory is lost, the part goes to storage. Raises `WriteFailed`.
        """
        if (kept := self._part_memory.save(step, number, chunks)) is not None:
            return kept
        receipt = write_part(number, chunks, self._own_buffer)
        try:
            self._files.write_part(step, number, self._own_buffer.written())
        except OSError as error:
            raise write_failed(f"part {number} of the checkpoint of step {step}", self._files.uri, error) from error
        return receipt

    def read_part(self, step: int, part: PartFacts) -> Iterable[ReadBytes]:
        """Return readers of all nodes' memory, and of storage."""
        return chain(self._part_memory.copies(step, part), self._stored_copies(step, part))

    def _stored_copies(self, step: int, part: PartFacts) -> Iterator[ReadBytes]:
        yield from self._files.part_readers(step, part.number)  # it may list the steps: only if memory has no copy

    def newest(self, shards: Collection[int] | None = None, *, before: int | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None.

        It is in the memory of any node, or in storage.
        """
        self._reserved()
        stores = stores_of(self._owner.run)
        if self._store is None:
            self._request_buffer(stores)
        stored = self._in_storage(bool(stores))
        held = stored_steps(stores)
        if self._node in held and not self._is_starting:
            self._wait_s = self._copy_timeout_s(held[self._node].num_bytes)
        newest = newest_of([*self._in_memory(stores, held), *(stored or ())], shards, before=before)
        if stored is not None:  # Otherwise the store may have a later one.
            self._latest = -1 if newest is None else newest.step
        return newest

    def flush(self) -> None:
        """Return once the newest checkpoint is in storage.

        Raises `WriteFailed`, and `Fenced`.
        """
        self._reserved()
        error: WriteFailed | Fenced | None = None
        if self._store is None or self._saved is None:
            error = flush_newest(self._owner.run)
        elif self._saved is not self._stored:
            try:
                error = ray.get(self._store.flush.remote(), timeout=FLUSH_S)
            except (RayActorError, GetTimeoutError) as lost:
                self._lose_store(lost)
                self._save_to_storage(self._saved)
        if error is not None:
            raise error

    def close(self) -> None:
        """Release the memory store, which continues to exist."""
        self._store = self._pending = self._handle = self._client = self._saved = self._stored = None

    def _reserved(self) -> None:
        """Wait until no thread allocates memory.

        This store's state belongs to one thread at a time.
        """
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _touch(self, num_bytes: int, gpu: int | None) -> None:
        """Touch the pages of the next buffer, if it is new.

        What fails here fails again at the next checkpoint, which knows what to do.
        """
        with suppress(RayError, OSError):
            self._handle = self._handle or ray.get(self._pending, timeout=self._wait_s)
            self._client = self._client or SharedBufferClient(self._handle.pid)
            writer = self._client.writer(self._handle)
            writer.touch(num_bytes)
            lock_pages(writer, gpu)

    def _next_handle(self) -> BufferHandle | None:
        """Buffer for the next checkpoint.

        None while there is no memory store.
        """
        if self._handle is not None:
            return self._handle
        if self._pending is None:
            self._request_buffer(stores_of(self._owner.run))
        try:
            self._handle = ray.get(self._pending, timeout=self._wait_s)
        except (RayActorError, RayTaskError, GetTimeoutError) as error:
            if self._is_starting and isinstance(error, GetTimeoutError):
                self._wait_s = 0.0  # The next checkpoints ask again, without waiting.
                log.warning("The memory of this node for checkpoints is not ready: this one goes straight to storage.")
            else:
                self._lose_store(error)
        return self._handle

    def _open_buffer(self) -> tuple[BufferHandle | None, ReusableBuffer]:
        """Memory for the next checkpoint.

        A buffer of the store, or of this process while there is no store.
        """
        handle = self._next_handle()
        if handle is None:
            return None, self._own_buffer
        try:
            self._client = self._client or SharedBufferClient(handle.pid)
            return handle, self._client.writer(handle)
        except OSError as error:  # The store has ended meanwhile.
            self._lose_store(error)
            return None, self._own_buffer

    def _hand_over(self, handle: BufferHandle, encoded: EncodedCheckpoint, *, goes_on: bool) -> bool:
        """Finish the checkpoint in its buffer.

        Returns whether the memory store has it.

        The store answers when the copy on another node is done. The next `save` waits for the answer. This one waits
        for it only if later checkpoints may have to be abandoned.
        """
        assert self._store is not None
        assert self._client is not None
        self._client.writer(handle).finish(encoded)
        self._pending, self._handle = self._store.keep.remote(handle.number), None
        self._is_starting = False
        self._wait_s = self._copy_timeout_s(encoded.num_bytes)
        return (goes_on and self._client.is_alive) or self._next_handle() is not None

    def _copy_timeout_s(self, num_bytes: int) -> float:
        """Time limit (s) of a copy to another node.

        A memory store makes the copy.
        """
        return min(KEEP_S + num_bytes / REPLICATE_BYTES_PER_S, self._owner.config.store_timeout_s)

    def _request_buffer(self, stores: Stores) -> None:
        """Request a buffer of this node's store.

        Makes the store if it is not in `stores`.
        """
        self._is_starting = self._node not in stores
        starts_in_s = min(START_S, self._owner.config.store_timeout_s)
        self._wait_s = starts_in_s if self._is_starting else self._copy_timeout_s(0)
        self._store = make_store(self._owner, self._node)
        self._pending = self._store.acquire.remote()

    def _lose_store(self, error: Exception) -> None:
        """Use no store until this checkpoint is in storage.

        The lost store may be alive and the only one with the last checkpoint.
        """
        if not is_alive(self._owner.coordinator):
            os._exit(1)
        log.warning(
            "The memory of this node for checkpoints is lost (%s). It is made again; until then they go to %s.",
            type(error).__name__,
            self._files.uri,
        )
        self._pending = self._handle = self._client = None

    def _replace_store(self) -> None:
        assert self._store is not None
        ray.kill(self._store)
        self._request_buffer({})
        self._wait_s = 0.0

    def _save_to_storage(self, encoded: EncodedCheckpoint, before: EncodedCheckpoint | None = None) -> None:
        """Write a checkpoint to storage, and replace the lost store.

        `before` is the previous checkpoint, or None.
        """
        stores = stores_of(self._owner.run)
        if self._is_starting:
            stores.pop(self._node, None)  # This store is still empty and cannot answer yet.
        silent = yield_storage(stores, encoded.step)
        self._write(encoded, before)
        self._stored = encoded
        # A silent store that answered later would overwrite this checkpoint.
        for store in silent.values():
            ray.kill(store)
        if self._pending is None:
            self._replace_store()

    def _write(self, encoded: EncodedCheckpoint, before: EncodedCheckpoint | None) -> None:
        try:
            # The store may have been lost before it uploaded a permanent checkpoint.
            if before is not None and before.step < encoded.step and self._is_owed(before):
                self._upload(before)
            self._files.check_fence()
            self._upload(encoded)
        except OSError as error:
            advice = f"The memory of this node is lost too. {ADVICE}"
            raise write_failed(f"the checkpoint of step {encoded.step}", self._files.uri, error, advice) from error

    def _upload(self, encoded: EncodedCheckpoint) -> None:
        if not upload_parts_of(self._owner.run, encoded, self._owner.config):
            raise OSError(f"parts of the checkpoint of step {encoded.step} are lost")
        self._files.write(encoded.sealed())

    def _is_owed(self, before: EncodedCheckpoint) -> bool:
        is_kept = self._owner.config.is_permanent(before.step) or before.is_best
        return is_kept and before is not self._stored and before.step not in self._files.complete_steps()

    def _in_memory(self, stores: Stores, held: dict[str, StoredStep]) -> Iterator[FoundCheckpoint]:
        for node, stored in held.items():
            is_here = node == self._node
            tier = Tier.THIS_NODE if is_here else Tier.OTHER_NODE
            for step in (stored.step, stored.before):
                if step is not None:
                    read = partial(_read, stores[node], stored.num_bytes, step=step, is_here=is_here)
                    # All stores of earlier attempts have ended.
                    yield FoundCheckpoint(
                        self._owner.config.attempt or 1, step, tier, f"the memory of node {node[:8]}", read
                    )

    def _in_storage(self, has_memory: bool) -> list[FoundCheckpoint] | None:
        """Checkpoints in storage, or None without an answer.

        That matters less if there is memory.
        """
        try:
            return found_in(self._files)
        except (OSError, ReadFailed) as error:
            if not has_memory:
                raise
            log.warning("%s does not answer (%s); looking in memory only.", self._files.uri, error)
            return None


def _read(
    store: ActorHandle, num_bytes: int, shards: Collection[int] | None, *, step: int, is_here: bool
) -> EncodedCheckpoint:
    """Read a store's checkpoint.

    Raises `CorruptCheckpoint` if it is lost meanwhile, or too slow for its size.
    """
    within_s = READ_S + num_bytes / REPLICATE_BYTES_PER_S
    try:
        if is_here:
            metadata, path = ray.get(store.locate.remote(step), timeout=within_s)
            found = read_shared_buffer(path, metadata)
            asked = {number: each for number, each in found.shards.items() if shards is None or number in shards}
            return EncodedCheckpoint(metadata=metadata, shards=asked)
        metadata, arrays = ray.get(store.fetch.remote(shards, step), timeout=within_s)
        return EncodedCheckpoint(
            metadata=metadata, shards={number: memoryview(array) for number, array in arrays.items()}
        )
    except (RayError, OSError) as error:
        raise CorruptCheckpoint(f"it is lost, with {type(error).__name__}") from error
