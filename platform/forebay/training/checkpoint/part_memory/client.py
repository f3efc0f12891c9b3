"""Access of one rank to the parts in memory.

It writes its own on its node, and reads the parts of any node.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from forebay.training.checkpoint.encoded import Bytes, CorruptCheckpoint, PartFacts
from forebay.training.checkpoint.part_memory.actor import (
    COPY_BYTES_PER_S,
    COPY_S,
    StoreOwner,
    make_part_store,
    nodes_with_parts,
    part_store_on,
)
from forebay.training.checkpoint.part_memory.store import KeptPart
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, write_part
from forebay.training.checkpoint.parts.verified_part import ReadBytes
from forebay.training.checkpoint.shared_buffer import METADATA_ROOM, SharedBufferClient

READ_S = 30.0

log = logging.getLogger(__name__)


class PartMemory:
    """Memory of all nodes for the parts of a run.

    One rank uses it. `is_needed` is for its `PartStoreActor`.
    """

    def __init__(self, owner: StoreOwner, node: str, is_needed: Callable[[str], bool]) -> None:
        self._owner, self._node, self._is_needed = owner, node, is_needed
        self._store: ActorHandle | None = None
        self._client: SharedBufferClient | None = None
        self._copied_bytes = 0
        self._written: int | None = None
        self.sealed: int | None = None
        """Step of the newest complete checkpoint, as far as this rank knows."""

    def reserve(self, number: int, num_bytes: int) -> None:
        """Make memory for parts of about `num_bytes` on this node, without waiting."""
        with suppress(RayError):  # the first part meets it again, and says so
            self._started().reserve.remote(number, num_bytes, os.getpid())

    def save(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt | None:
        """Write a part into the memory of this node.

        Returns None, with a warning, if that memory is lost.
        """
        try:
            return self._save(step, number, chunks)
        except (RayError, OSError) as error:
            log.warning(
                "The memory of this node for parts of checkpoints is lost (%s). Part %d of step %d goes to storage.",
                type(error).__name__,
                number,
                step,
            )
            if self._store is not None:
                ray.kill(self._store)
            self._store = self._client = None
            return None

    def copies(self, step: int, facts: PartFacts) -> Iterator[ReadBytes]:
        """Return a reader for each node.

        This one, the one that wrote the part, then those that follow it: the next has the copy. Stores are looked up
        when their turn comes: of 4,096 parts, a rank reads a few.
        """
        self.sealed, self._written = step, None
        return self._readers(step, facts)

    def _readers(self, step: int, facts: PartFacts) -> Iterator[ReadBytes]:
        run = self._owner.run
        if (here := part_store_on(run, self._node)) is not None:
            yield MappedPart(here, step, facts).read
        if facts.node not in ("", self._node) and (origin := part_store_on(run, facts.node)) is not None:
            yield _fetched(origin, step, facts)
        for node in sorted(nodes_with_parts(run), key=lambda node: (node <= facts.node, node)):
            if node not in (self._node, facts.node) and (store := part_store_on(run, node)) is not None:
                yield _fetched(store, step, facts)

    def _save(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:
        store = self._started()
        if self._written not in (None, step):
            # All ranks come to their next checkpoint only after the one before it is complete.
            self.sealed = self._written
        # The store answers when the copy of the part before is made.
        within_s = min(COPY_S + READ_S + self._copied_bytes / COPY_BYTES_PER_S, self._owner.config.store_timeout_s)
        handle = ray.get(store.acquire.remote(step, number, self.sealed), timeout=within_s)
        self._client = self._client or SharedBufferClient(handle.pid)
        receipt = replace(write_part(number, chunks, self._client.writer(handle)), node=self._node)
        part = KeptPart(step=step, sealed=self.sealed, facts=receipt.facts)
        ray.get(store.keep.remote(part, handle.number), timeout=READ_S)
        self._copied_bytes, self._written = receipt.num_bytes, step
        return receipt

    def _started(self) -> ActorHandle:
        if self._store is None:
            self._store = make_part_store(self._owner, self._node, self._is_needed)
        return self._store


class MappedPart:
    """A part in this node's memory, mapped at first read."""

    def __init__(self, store: ActorHandle, step: int, facts: PartFacts) -> None:
        self._store, self._step, self._facts = store, step, facts
        self._mapped: memoryview | None = None

    def read(self, begin: int, end: int) -> Bytes:
        """Return bytes `begin` to `end`.

        Raises `CorruptCheckpoint` if the part is not here.
        """
        if self._mapped is None:
            path = _answer(self._store.locate.remote(self._step, self._facts))
            try:
                with Path(str(path)).open("rb") as file:
                    room = METADATA_ROOM + self._facts.num_bytes
                    self._mapped = memoryview(mmap.mmap(file.fileno(), room, access=mmap.ACCESS_READ))[METADATA_ROOM:]
            except (OSError, ValueError) as error:
                raise CorruptCheckpoint(f"it is lost, with {type(error).__name__}") from error
        return self._mapped[begin:end]


def _fetched(store: ActorHandle, step: int, facts: PartFacts) -> ReadBytes:
    def read(begin: int, end: int) -> Bytes:
        array = _answer(store.fetch.remote(step, facts, begin, end))
        return memoryview(array)  # type: ignore[arg-type]

    return read


def _answer(asked: object) -> object:
    try:
        found = ray.get(asked, timeout=READ_S)
    except RayError as error:
        raise CorruptCheckpoint(f"it is lost, with {type(error).__name__}") from error
    if found is None:
        raise CorruptCheckpoint("it is not in memory")
    return found
