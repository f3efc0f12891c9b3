"""A block, from wherever it is cheapest: the cache, another process that is making it, another node, or the source."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from forebay.cache.block_key import BlockNames
from forebay.cache.disk.disk_cache import DiskCache
from forebay.errors import Cancelled, CorruptFile
from forebay.manifest.footer import FooterCache
from forebay.manifest.reading import RowGroupReader
from forebay.metrics import Counters
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy
from forebay.transform.block import Block
from forebay.transform.dataset import Dataset

Origin = Literal["hit", "store", "bypass"]
"""Found in the cache; made and stored; made and, as it does not fit, not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Under what conditions blocks are made.

    `policy`: deadlines and retries of reads; `cancelled`: set to end them. `cores` is entered for what costs a core
    (decoding, the transform), and not for waiting on storage or the cache's disk. `peers` are asked before the source.
    Footers that were read once are kept in `footers`.
    """

    policy: ReadPolicy = DEFAULT_POLICY
    footers: FooterCache = field(default_factory=FooterCache)
    cancelled: threading.Event = field(default_factory=threading.Event)
    cores: AbstractContextManager[object] = field(default_factory=nullcontext)
    peers: Peers | None = None


class BlockBuilder:
    """Makes the blocks of one (manifest, transform) in the calling thread; safe to call from several."""

    def __init__(
        self,
        dataset: Dataset,
        cache: DiskCache | None,
        *,
        tally: Counters,
        conditions: BuildOptions | None = None,
    ) -> None:
        self._transform = dataset.transform
        self._cache = cache
        self._tally = tally
        self._conditions = conditions or BuildOptions()
        self._columns = dataset.columns
        self._reader = RowGroupReader(
            dataset.manifest,
            self._conditions.policy,
            tally,
            cancelled=self._conditions.cancelled,
            footers=self._conditions.footers,
        )
        self.names = BlockNames(dataset)

    def peek(self, index: int) -> Block | None:
        """Block `index` if this process has had it from the cache before: at hand, without reading anything."""
        return self._cache.peek(self.names.key(index), self._tally) if self._cache else None

    def make(self, index: int) -> tuple[Block, Origin]:
        """Block `index`. No Parquet file is opened for one that is in the cache or with a peer.

        Raises what reading and transforming raise, and `Cancelled`.
        """
        if self._cache is None:
            return self._bypass(self._made(index))
        key = self.names.key(index)
        if block := self._cache.get(key, self._tally):
            return block, "hit"
        # Whoever does not get the lock in time makes the block as well: better twice than never.
        with self._cache.single_flight(key, self._conditions.policy.deadline_s, self._conditions.cancelled):
            if block := self._cache.get(key, self._tally):
                return block, "hit"
            made = self._made(index)
            stored = self._cache.put(key, self.names.dataset, made, self._tally)
        return (stored, "store") if stored else self._bypass(made)

    def _made(self, index: int) -> Block:
        if self._conditions.cancelled.is_set():
            raise Cancelled(f"making block {index} was cancelled")
        if self._conditions.peers and (block := self._from_peer(self._conditions.peers, index)):
            return block
        try:
            return self._from_pages(index)
        except CorruptFile:  # perhaps on its way only
            self._tally.add("retries")
            return self._from_pages(index)

    def _from_pages(self, index: int) -> Block:
        fetched = self._reader.fetch(index, self._columns)
        with self._conditions.cores:
            table = self._reader.decode(fetched)
            del fetched
            with self._tally.timed("transform_s"):
                return self._transform.apply(table)

    def _from_peer(self, peers: Peers, index: int) -> Block | None:
        with self._tally.timed("peer_s"):
            block = peers.find(self.names.key(index), self._reader.manifest[index].rows)
        if block:
            self._tally.add("peer_hits")
            self._tally.add("peer_bytes", block.nbytes)
        return block

    def _bypass(self, block: Block) -> tuple[Block, Origin]:
        self._tally.add("bypasses")
        self._tally.add("bypass_bytes", block.nbytes)
        return block, "bypass"


class Peers(Protocol):
    """The other nodes of a cluster, asked for one block."""

    def find(self, key: str, rows: int) -> Block | None:
        """The block `key`, of `rows` rows, from a node that holds it; None if none does or answers in time.

        Never raises for what a peer does: then the block is made from its source.
        """
        ...
