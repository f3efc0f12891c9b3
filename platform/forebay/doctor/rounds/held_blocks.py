"""A few cached blocks that stand for a whole dataset.

So a gather needs no cold epoch first.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from forebay.data.cache.block_key import BlockNames
from forebay.data.cache.builders.block_builder import BlockBuilder
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import BlockSource, LocalSource
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.ragged import LIST_OFFSETS, LIST_VALUES, list_offsets
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.doctor.rounds.deadline import Deadline
from forebay.doctor.rounds.sample import HeldPagesReader, Sample, datasets_in
from forebay.errors import CacheUnusable
from forebay.runtime.metrics import Counters

MOST_HELD = 8


class HeldBlocks:
    """`SourceProvider` of the blocks of a sample.

    They are in a cache directory of its own.

    Block `i` of the data is answered with one of the held blocks, at the row count of `i`: the order, the number of
    blocks that a batch is gathered from and the bytes of a row stay as in the job. Windows of series need their own
    blocks, so those are built when they are first needed.
    """

    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache
        self._keys: dict[str, list[str]] = {}
        self.num_blocks = self.rows = self.nbytes = 0

    def fill(self, sample: Sample, *, deadline: Deadline, counters: Counters) -> None:
        """Build blocks of the sample until the deadline.

        At least one of each dataset, at most `MOST_HELD`. `counters` receives the seconds of their steps.

        Raises the errors of building them, and `CacheUnusable` if the disk has no room for one.
        """
        for dataset in datasets_in(sample).values():
            builder = BlockBuilder(
                dataset, self._cache, counters=counters, reader=HeldPagesReader(dataset, sample, counters)
            )
            keys = self._keys[_id_of(dataset)] = list[str]()
            for each in (each for each in sample if each.dataset is dataset):
                if keys and (len(keys) >= MOST_HELD or deadline.is_over):
                    break
                block, origin, _ = builder.build(each.index)
                if origin == "bypass":
                    raise CacheUnusable(
                        f"{self._cache.path} has no room for one block of {block.nbytes:,} bytes. Free some space "
                        "there, or let the job's CacheSpec name a folder beside which there is more."
                    )
                keys.append(builder.names.key(each.index))
                self.num_blocks, self.rows = self.num_blocks + 1, self.rows + block.rows
                self.nbytes += block.nbytes

    def source(self, dataset: Dataset, counters: Counters) -> BlockSource:
        """Blocks of `dataset`."""
        if isinstance(dataset.transform, SequenceTransform):
            return LocalSource(dataset, self._cache, counters=counters)
        return _HeldSource(self._cache, self._keys[_id_of(dataset)], dataset, counters)


class _HeldSource:
    """`BlockSource` that maps a held block."""

    def __init__(self, cache: DiskCache, keys: list[str], dataset: Dataset, counters: Counters) -> None:
        self._cache, self._keys, self._dataset, self._counters = cache, keys, dataset, counters

    def request(self, index: int) -> Future[Block]:
        future: Future[Block] = Future()
        block = self._cache.get(self._keys[index % len(self._keys)], self._counters)
        if block is None:
            future.set_exception(CacheUnusable(f"a file in {self._cache.path} was removed during the examination."))
        else:
            future.set_result(with_rows(block, self._dataset.manifest[index].rows))
        return future

    def close(self, timeout_s: float = 5.0) -> None:
        """Do nothing: no request is pending."""


def with_rows(block: Block, rows: int) -> Block:
    """Return a block of `rows` rows, taken from `block` in turn."""
    if rows == block.rows:
        return block
    arrays = {
        name: array[:rows] if rows < block.rows else np.resize(array, (rows, *array.shape[1:]))
        for name, array in block.arrays.items()
        if not name.startswith(LIST_VALUES)
    }
    # Rows in turn have their values in turn, so the first values are the values of the lists.
    for name, array in block.arrays.items():
        if name.startswith(LIST_OFFSETS):
            feature = name.removeprefix(LIST_OFFSETS)
            arrays[name] = list_offsets(feature, np.resize(np.diff(array), rows))
            values = block.arrays[f"{LIST_VALUES}{feature}"]
            arrays[f"{LIST_VALUES}{feature}"] = np.resize(values, int(arrays[name][-1]))
    return Block(rows, {name: arrays[name] for name in block.arrays}, block)


def _id_of(dataset: Dataset) -> str:
    return BlockNames(dataset).id
