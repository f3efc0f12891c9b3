"""`Commits` for workers on Ray: in the memory of their node, with a copy on another, and in storage now and then."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.checkpoint import Checkpoint, Encoder, Found, found_in, newest_of
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint
from forebay.checkpoint.files import CheckpointFiles
from forebay.checkpoint.memory_store import StoredStep
from forebay.checkpoint.memory_store_actor import (
    REPLICATE_BYTES_PER_S,
    StoreOwner,
    Stores,
    end_stores,
    flush_newest,
    give_up,
    holdings,
    is_alive,
    make_store,
    stores_of,
)
from forebay.checkpoint.shared_buffer import BufferHandle, SharedBufferClient, read_slot
from forebay.errors import ReadFailed, WriteFailed

START_S = 15.0
COMMIT_S = 30.0
READ_S = 30.0
FLUSH_S = 900.0

log = logging.getLogger(__name__)


def open_commits(run: str, safekeeping: CheckpointConfig, coordinator: ActorHandle) -> RayCheckpointStore:
    """The commits of `run`, in any of its worker processes. `coordinator` is the actor that ends with the run."""
    return RayCheckpointStore(StoreOwner(run=run, safekeeping=safekeeping, coordinator=coordinator))


@contextmanager
def commit_stores(run: str) -> Iterator[None]:
    """On the driver, around a whole run: none of its stores is left before or after, and no commit is lost with them.

    Those from before are of a driver that was killed.
    """
    end_stores(run)
    try:
        yield
    finally:
        try:
            end_stores(run)
        except RayError as error:  # the cluster is gone; where it is not, they end with the coordinator
            log.warning("The memory of the run's commits could not be asked to end (%s).", type(error).__name__)


def flush_stores(run: str) -> None:
    """On the driver, at a drain notice: bring the newest commit to storage. Where it cannot get there is logged."""
    if error := flush_newest(run):
        log.warning("%s", error)


class RayCheckpointStore:
    """`Commits` in the store of this node. While that one is lost, commits go straight to storage, with a warning.

    A worker whose coordinator is gone as well is an orphan of a driver that was killed: it ends this process, because
    what it saved would hurt the run that may go on elsewhere.
    """

    def __init__(self, owner: StoreOwner) -> None:
        self._owner = owner
        self._files = CheckpointFiles(owner.safekeeping)
        self._node = ray.get_runtime_context().get_node_id()
        self._sealer = Encoder()
        self._store: ActorHandle | None = None
        self._leasing: Any = None
        self._lease: BufferHandle | None = None
        self._desk: SharedBufferClient | None = None
        self._spare = ReusableBuffer()
        self._patience_s = 0.0
        self._is_starting = True
        self._saved: EncodedCheckpoint | None = None
        self._stored: EncodedCheckpoint | None = None
        self._latest: int | None = None

    def save(self, commit: Checkpoint) -> None:
        """Return once `commit` is in the memory of this node, and the one before it on another node too.

        The store need not have noticed it yet: it looks for it as soon as somebody asks.
        """
        before, self._saved = self._saved, None
        goes_on = self._latest is not None and commit.step > self._latest
        lease, pad = self._place()
        sealed = self._sealer.seal(commit, pad)
        self._latest = commit.step
        if lease is None or not self._commit(lease, sealed, goes_on=goes_on):
            self._save_to_storage(sealed, before)
        self._saved = sealed

    def newest(self) -> Checkpoint | None:
        """The newest whole commit in the memory of any node, or in storage."""
        stores = stores_of(self._owner.run)
        if self._store is None:
            self._ask_for_store(stores)
        stored = self._in_storage(bool(stores))
        held = holdings(stores)
        if self._node in held and not self._is_starting:
            self._patience_s = self._patience_for(held[self._node].num_bytes)
        newest = newest_of([*self._in_memory(stores, held), *(stored or ())])
        if stored is not None:  # otherwise it may hold a later one
            self._latest = -1 if newest is None else newest.step
        return newest

    def flush(self) -> None:
        """Return once the newest commit is in storage. Raises `WriteFailed`."""
        error: WriteFailed | None = None
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
        """Let go of the store, which stays."""
        self._store = self._leasing = self._lease = self._desk = self._saved = self._stored = None

    def _leased(self) -> BufferHandle | None:
        """The slot to write into; None while there is no store."""
        if self._lease is not None:
            return self._lease
        if self._leasing is None:
            self._ask_for_store(stores_of(self._owner.run))
        try:
            self._lease = ray.get(self._leasing, timeout=self._patience_s)
        except (RayActorError, RayTaskError, GetTimeoutError) as error:
            if self._is_starting and isinstance(error, GetTimeoutError):
                self._patience_s = 0.0  # the next commits ask again, and do not wait
                log.warning("The memory of this node for commits is not ready: this one goes straight to storage.")
            else:
                self._lose_store(error)
        return self._lease

    def _place(self) -> tuple[BufferHandle | None, ReusableBuffer]:
        """Where to write the next state: a slot of the store, or memory of this process while there is no store."""
        lease = self._leased()
        if lease is None:
            return None, self._spare
        try:
            self._desk = self._desk or SharedBufferClient(lease.pid)
            return lease, self._desk.pad(lease)
        except OSError as error:  # the store has ended since
            self._lose_store(error)
            return None, self._spare

    def _commit(self, lease: BufferHandle, sealed: EncodedCheckpoint, *, goes_on: bool) -> bool:
        """Whether the store has it. Its answer is awaited by the next one, unless there may be later ones to give up.

        The answer comes with the copy on another node.
        """
        assert self._store is not None
        assert self._desk is not None
        self._desk.pad(lease).seal(sealed)
        self._leasing, self._lease = self._store.commit.remote(lease.number), None
        self._is_starting = False
        self._patience_s = self._patience_for(sealed.num_bytes)
        return (goes_on and self._desk.is_alive) or self._leased() is not None

    def _patience_for(self, num_bytes: int) -> float:
        """How long the store may take for the copy of a commit: so long the neighbour is given."""
        return min(COMMIT_S + num_bytes / REPLICATE_BYTES_PER_S, self._owner.safekeeping.patience_s)

    def _ask_for_store(self, stores: Stores) -> None:
        """Have it made if it is not among `stores`."""
        self._is_starting = self._node not in stores
        starts_in_s = min(START_S, self._owner.safekeeping.patience_s)
        self._patience_s = starts_in_s if self._is_starting else self._patience_for(0)
        self._store = make_store(self._owner, self._node)
        self._leasing = self._store.lease.remote()

    def _lose_store(self, error: Exception) -> None:
        """Have no store, until the commit at hand is in storage: this one may live, and be all that has the last."""
        if not is_alive(self._owner.coordinator):
            os._exit(1)
        log.warning(
            "The memory of this node for commits is lost (%s). It is made anew; until then commits go straight to %s.",
            type(error).__name__,
            self._files.uri,
        )
        self._leasing = self._lease = self._desk = None

    def _replace_store(self) -> None:
        assert self._store is not None
        ray.kill(self._store)
        self._ask_for_store({})
        self._patience_s = 0.0

    def _save_to_storage(self, sealed: EncodedCheckpoint, before: EncodedCheckpoint | None = None) -> None:
        """Write a commit past all stores, then have a lost one made anew. `before` is the commit before, if known."""
        stores = stores_of(self._owner.run)
        if self._is_starting:
            stores.pop(self._node, None)  # it has nothing, and cannot say so yet
        silent = give_up(stores, sealed.step)
        self._write(sealed, before)
        self._stored = sealed
        # If one came to itself later, it would write over this.
        for store in silent.values():
            ray.kill(store)
        if self._leasing is None:
            self._replace_store()

    def _write(self, sealed: EncodedCheckpoint, before: EncodedCheckpoint | None) -> None:
        try:
            # The store may have been lost before it wrote one that is to stay for ever.
            if before is not None and before.step < sealed.step and self._is_owed(before):
                self._files.write(before)
            self._files.write(sealed)
        except OSError as error:
            raise WriteFailed(
                f"the commit of step {sealed.step} could not be written to {self._files.uri} ({error}), and the memory "
                "of this node is lost too. Check that the storage answers, has room, and that this user may write to "
                "it.",
                uri=self._files.uri,
            ) from error

    def _is_owed(self, before: EncodedCheckpoint) -> bool:
        is_kept = self._owner.safekeeping.is_kept(before.step) and before is not self._stored
        return is_kept and before.step not in self._files.sealed_steps()

    def _in_memory(self, stores: Stores, held: dict[str, StoredStep]) -> Iterator[Found]:
        for node, holding in held.items():
            is_here = node == self._node
            read = partial(_read, stores[node], holding.num_bytes, is_here=is_here)
            yield Found(holding.step, 2 if is_here else 1, f"the memory of node {node[:8]}", read)

    def _in_storage(self, has_memory: bool) -> list[Found] | None:
        """What is in storage; None if that does not answer, which matters less where there is memory."""
        try:
            return found_in(self._files)
        except (OSError, ReadFailed) as error:
            if not has_memory:
                raise
            log.warning("%s does not answer (%s); looking in memory only.", self._files.uri, error)
            return None


def _read(store: ActorHandle, num_bytes: int, *, is_here: bool) -> EncodedCheckpoint:
    """What a store has. Raises `CorruptCheckpoint` if it is lost meanwhile, or takes too long for so much."""
    within_s = READ_S + num_bytes / REPLICATE_BYTES_PER_S
    try:
        if is_here:
            facts, path = ray.get(store.shown.remote(), timeout=within_s)
            return EncodedCheckpoint(facts=facts, state=read_slot(path, facts["state_bytes"]))
        facts, state = ray.get(store.given.remote(), timeout=within_s)
        return EncodedCheckpoint(facts=facts, state=memoryview(state))
    except (RayError, OSError) as error:
        raise CorruptCheckpoint(f"it is lost, with {type(error).__name__}") from error
