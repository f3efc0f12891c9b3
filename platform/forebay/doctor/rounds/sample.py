"""Row groups that an examination measures.

The first ones of the order, read once before the measurement.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from forebay.data.loader.data import Data
from forebay.data.manifest.manifest import RowGroup
from forebay.data.parquet.reading import Fetched, RowGroupReader
from forebay.data.transform.dataset import Dataset
from forebay.doctor.rounds.deadline import Deadline
from forebay.runtime.metrics import Counters
from forebay.runtime.threads import each_in_threads
from forebay.storage.filesystem import resolve_source
from forebay.world import World

MOST_BYTES = 256 << 20
"""Compressed bytes of a sample: it stays in the page cache, or in this process, during the measurement."""
MOST_BLOCKS = 64
MOST_SPANS = 4096
LEAST_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledRowGroup:
    """Row group `index` of `dataset`.

    `held` has its pages if they come from a network.
    """

    dataset: Dataset
    index: int
    held: Fetched | None = None

    @property
    def row_group(self) -> RowGroup:
        return self.dataset.manifest[self.index]


Sample = tuple[SampledRowGroup, ...]


def read_sample(data: Data, world: World, *, num_reads: int, deadline: Deadline) -> Sample:
    """Read the row groups that `world` needs first.

    Until the deadline, and at least `LEAST_BLOCKS` of them.

    Pages of local files are in the page cache afterwards. Pages from a network are held.
    Raises the errors of `RowGroupReader.fetch`.
    """
    wanted = list(_first_needed(data, world))
    readers = {id(each.dataset): RowGroupReader(each.dataset.manifest) for each in wanted}

    def read(each: SampledRowGroup) -> SampledRowGroup:
        fetched = readers[id(each.dataset)].fetch(each.index, each.dataset.columns)
        return each if _is_local(each) else replace(each, held=fetched)

    found: list[SampledRowGroup] = []
    for start in range(0, len(wanted), num_reads):
        if len(found) >= LEAST_BLOCKS and deadline.is_over:
            break
        together = wanted[start : start + num_reads]
        read_now = dict(each_in_threads(read, together, most=num_reads, name="forebay-doctor"))
        found += (read_now[number] for number in range(len(together)))
    return tuple(found)


def num_blocks(data: Data, world: World, sample: Sample) -> int:
    """Return the number of blocks of a rank in an epoch.

    Its share in `world`, or all of a sample that is larger.
    """
    return max(len(sample), -(-sum(len(dataset.manifest) for dataset in data.datasets) // world.size))


def forget_pages(sample: Sample) -> None:
    """Drop the sample's local files from the page cache.

    As far as the system does so. Changes no file.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for uri in {each.row_group.uri for each in sample if each.held is None}:
        with suppress(OSError):
            descriptor = os.open(resolve_source(uri).path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class HeldPagesReader(RowGroupReader):
    """Reader of row groups whose pages are held in memory."""

    def __init__(self, dataset: Dataset, sample: Sample, counters: Counters) -> None:
        super().__init__(dataset.manifest, counters=counters)
        self._held = {each.index: each.held for each in sample if each.dataset is dataset and each.held is not None}

    def fetch(self, index: int, columns: Sequence[str] | None = None) -> Fetched:
        """Pages of row group `index`, held or read."""
        return self._held.get(index) or super().fetch(index, columns)


def datasets_in(sample: Sample) -> Mapping[int, Dataset]:
    """Datasets of a sample, by id."""
    return {id(each.dataset): each.dataset for each in sample}


def _is_local(each: SampledRowGroup) -> bool:
    return resolve_source(each.row_group.uri).is_local


def _first_needed(data: Data, world: World) -> Iterator[SampledRowGroup]:
    datasets = data.datasets
    numbered = [(number, index) for number, each in enumerate(datasets) for index in range(len(each.manifest))]
    spans = data.plan.block_spans(0, 0, data.plan.owned_lanes(world))
    chosen = {numbered[span.block]: None for span in islice(spans, MOST_SPANS)}
    # Each dataset of a mixture has a block, however rare its rows are.
    chosen |= {(number, 0): None for number in range(len(datasets)) if all(number != at for at, _ in chosen)}
    source_bytes, seen = 0, set[int]()
    for count, (number, index) in enumerate(chosen):
        if number in seen and (count >= MOST_BLOCKS or (count >= LEAST_BLOCKS and source_bytes > MOST_BYTES)):
            continue
        seen.add(number)
        source_bytes += int(datasets[number].manifest.source_bytes[index])
        yield SampledRowGroup(dataset=datasets[number], index=index)
