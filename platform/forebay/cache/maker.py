"""A block, from wherever it is cheapest: the cache, another process that is making it, or the source."""

from __future__ import annotations

import threading
from typing import Literal

from forebay.cache.disk import DiskCache
from forebay.cache.key import BlockNames
from forebay.manifest.manifest import Manifest
from forebay.manifest.reading import RowGroupReader
from forebay.observe import Tally
from forebay.storage.deadline import Cancelled
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy
from forebay.transform.block import Block
from forebay.transform.transform import Transform

Origin = Literal["hit", "store", "bypass"]
"""Found in the cache; made and stored; made and, as it does not fit, not stored."""


class BlockMaker:
    """Makes the blocks of one (manifest, transform) in the calling thread; safe to call from several."""

    def __init__(
        self,
        manifest: Manifest,
        transform: Transform,
        cache: DiskCache | None,
        *,
        tally: Tally,
        policy: ReadPolicy = DEFAULT_POLICY,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._transform = transform
        self._cache = cache
        self._tally = tally
        self._policy = policy
        self._cancelled = cancelled or threading.Event()
        self._columns = manifest.columns if transform.columns is None else transform.columns
        self._reader = RowGroupReader(manifest, policy, tally, self._cancelled)
        self.names = BlockNames(manifest, transform)

    def make(self, index: int) -> tuple[Block, Origin]:
        """Block `index`. No Parquet file is opened for one that is in the cache.

        Raises what reading and transforming raise, and `Cancelled`.
        """
        if self._cache is None:
            return self._bypass(self._from_source(index))
        key = self.names.key(index)
        if block := self._cache.get(key, self._tally):
            return block, "hit"
        # Whoever does not get the lock in time makes the block as well: better twice than never.
        with self._cache.single_flight(key, self._policy.deadline_s, self._cancelled):
            if block := self._cache.get(key, self._tally):
                return block, "hit"
            made = self._from_source(index)
            stored = self._cache.put(key, self.names.dataset, made, self._tally)
        return (stored, "store") if stored else self._bypass(made)

    def _from_source(self, index: int) -> Block:
        if self._cancelled.is_set():
            raise Cancelled(f"making block {index} was cancelled")
        with self._tally.timed("read_s"):
            table = self._reader.read(index, self._columns)
        with self._tally.timed("transform_s"):
            return self._transform.apply(table)

    def _bypass(self, block: Block) -> tuple[Block, Origin]:
        self._tally.add("bypasses")
        self._tally.add("bypass_bytes", block.nbytes)
        return block, "bypass"
