"""A pass over a sample, as cold as the first one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.dataset import Dataset
from forebay.doctor.rounds.sample import HeldPagesReader, Sample, forget_pages
from forebay.runtime.metrics import Counters

MOST_PASSES = 4
"""Passes that overlap, so that more row groups may be read at once than a sample of large ones has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIO:
    """Source of an examination's pages, destination of its blocks.

    Attributes:
        sample: Row groups.
        caches: Cache directories, one for each of `MOST_PASSES`, or none to write none.
        from_source: Whether every pass reads the source. Else pages come from memory.
    """

    sample: Sample
    caches: Sequence[DiskCache]
    from_source: bool


class SamplePass:
    """Builders of pass `number`, one for each thread.

    So the time of each block is known apart.

    Discards the blocks of the pass that had its cache directory before.
    """

    def __init__(self, block_io: BlockIO, number: int, options: BuildOptions) -> None:
        self._io, self._options = block_io, options
        self._cache = block_io.caches[number % MOST_PASSES] if block_io.caches else None
        self._of_thread = threading.local()
        self._guard, self._is_begun = threading.Lock(), False
        if self._cache is not None:
            self._cache.clear()

    def begin(self) -> None:
        """Drop the sample's local files from the page cache, once."""
        with self._guard:
            if self._io.from_source and not self._is_begun:
                forget_pages(self._io.sample)
            self._is_begun = True

    def builder(self, dataset: Dataset) -> tuple[BlockBuilder, Counters]:
        """Return the calling thread's builder and its counters."""
        made: dict[int, tuple[BlockBuilder, Counters]] = self._of_thread.__dict__.setdefault("made", {})
        if id(dataset) not in made:
            counters = Counters()
            reader = None if self._io.from_source else HeldPagesReader(dataset, self._io.sample, counters)
            builder = BlockBuilder(dataset, self._cache, counters=counters, options=self._options, reader=reader)
            made[id(dataset)] = builder, counters
        return made[id(dataset)]
