"""First pass over all blocks of sequences.

It collects their runs, for the line, and their summaries, for the statistics.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import SourceProvider, open_source
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.preparation.progress import tell
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.hashing import Hashes
from forebay.data.windows.line import ARRANGE, BlockRuns, RunNames, StepLine
from forebay.data.windows.sequence_block import SUMMARY, TIME, Runs, SequenceTransform, static_hashes
from forebay.data.windows.statistics import Summary
from forebay.data.windows.times import time_text
from forebay.errors import BadSeries, InvalidOption
from forebay.runtime.formatting import count_text, rate_text, share_text
from forebay.runtime.formatting import time_text as clock_text
from forebay.runtime.metrics import Counters

_PENDING = 8
"""Blocks requested at once: enough to keep the data workers busy, few enough to bound memory."""

_LISTS_REMEDY = (
    "Rows of lists are sorted as wholes, so arrange() cannot help: write lists that do not overlap, or a row per step."
)


class SeriesBlocks:
    """Blocks of a dataset's series, through a cache.

    Args:
        manifest: Row groups.
        transform: Transform that makes the blocks.
        cache: Keeps the blocks that a pass makes, so that training does not read the source again. None makes them
            again.
    """

    def __init__(
        self, manifest: Manifest, transform: SequenceTransform, cache: DiskCache | SourceProvider | None
    ) -> None:
        if kept := manifest.kept:
            counts = f"{kept.deleted_rows} deleted, {kept.skipped_rows} skipped, {kept.rejected_rows} rejected"
            raise InvalidOption(
                f"{manifest} leaves out rows (where={kept.where!r}, {counts}), and Sequences reads whole row groups. "
                'Write the rows that are left, once: series = series.arrange(into="runs/prepared"), or fb.prepare. '
                "max_gap= then keeps windows from lying across a row that is left out."
            )
        self.manifest, self.transform, self._cache = manifest, transform, cache
        self.counters = Counters()

    def each(self, indices: Iterable[int]) -> Iterator[tuple[int, Block]]:
        """Yield blocks in the order of `indices`.

        Each with its number. Raises the errors of reading, and `BadSeries` with the file.
        """
        source = open_source(self._cache, Dataset(self.manifest, self.transform), self.counters)
        pending: deque[tuple[int, Future[Block]]] = deque()
        try:
            for index in indices:
                pending.append((index, source.request(index)))
                if len(pending) >= _PENDING:
                    yield _result(*pending.popleft())
            while pending:
                yield _result(*pending.popleft())
        finally:
            source.close()

    @property
    def time_type(self) -> pa.DataType:
        """Type of the time column.

        int64 without a time column.
        """
        columns = self.transform.step_columns
        schema = {field.name: parse_type(field.type) for field in self.manifest.fields}
        return pa.int64() if columns.time is None else columns.time_type(schema)

    def row_group_name(self, index: int) -> str:
        """Name of a row group for errors."""
        row_group = self.manifest[index]
        return f"row group {row_group.index} of {row_group.uri}"


def _result(index: int, future: Future[Block]) -> tuple[int, Block]:
    return index, future.result()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """All series of a dataset.

    Attributes:
        line: Steps of all entities.
        times: First and last time of each run of the line before gaps cut it, int64 [runs, 2].
        whole: The line before gaps cut it.
        entities: Names of the entities in the order of their numbers, int64 or large_string.
        summaries: Summary of each block, by dtype.
    """

    line: StepLine
    whole: StepLine
    times: NDArray[np.int64]
    entities: pa.Array
    summaries: dict[str, list[Summary]]


def read_series(blocks: SeriesBlocks, max_gap: int | None) -> Series:
    """Make or map all blocks, and join their runs.

    Raises `BadSeries` for runs that overlap, and for a static value that differs between them.
    """
    columns = blocks.transform.step_columns
    runs: list[Runs] = []
    gaps: list[NDArray[np.int64]] = []
    summaries: dict[str, list[Summary]] = {dtype: [] for dtype in columns.values}
    static: list[dict[str, Hashes]] = []
    progress = PassProgress("series", blocks.manifest.num_rows)
    for _, block in blocks.each(range(len(blocks.manifest))):
        found = Runs.of(block)
        # Copies: a mapped block is released before the next ones are mapped.
        runs.append(Runs(ends=found.ends.copy(), times=found.times.copy(), entities=pa.concat_arrays([found.entities])))
        gaps.append(np.empty(0, np.int64) if max_gap is None else _gaps_within(block, found, max_gap))
        static.append(static_hashes(block))
        for dtype, kept in summaries.items():
            kept.append(block.arrays[f"{SUMMARY}{dtype}"].copy())
        progress.add(block.rows)
    block_runs, entities = _block_runs(runs, has_time=columns.time is not None)
    names = RunNames(
        run=lambda run: blocks.row_group_name(int(block_runs.block[run])),
        entity=lambda number: repr(entities[number].as_py()),
        time=partial(time_text, column=blocks.time_type),
        remedy=_LISTS_REMEDY if columns.is_list else ARRANGE,
    )
    line = whole = StepLine.of(block_runs, len(entities), names)
    order = _line_order(line, block_runs)
    for name in static[0]:
        _refuse_changes(name, np.concatenate([each[name] for each in static]), block_runs, order, names)
    times = np.zeros((len(order), 2), np.int64) if block_runs.times is None else block_runs.times[order]
    if max_gap is not None:
        line = line.cut(_gap_offsets(line, times, gaps, max_gap))
    return Series(line=line, whole=whole, times=times, entities=entities, summaries=summaries)


def _block_runs(runs: list[Runs], *, has_time: bool) -> tuple[BlockRuns, pa.Array]:
    names = pa.chunked_array([each.entities for each in runs])
    encoded = names.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    first = [np.concatenate([[0], each.ends[:-1]]).astype(np.int64)[: len(each)] for each in runs]
    found = BlockRuns(
        block=np.repeat(np.arange(len(runs)), [len(each) for each in runs]),
        first=np.concatenate(first),
        steps=np.concatenate([each.ends - begin for each, begin in zip(runs, first, strict=True)]),
        entity=rank[encoded.indices.to_numpy()],
        times=np.concatenate([each.times for each in runs]) if has_time else None,
    )
    return found, encoded.dictionary.take(pa.array(order))


def _refuse_changes(name: str, hashes: Hashes, runs: BlockRuns, order: NDArray[np.int64], names: RunNames) -> None:
    """Raise `BadSeries` for a static value that differs between two runs of an entity."""
    entity, values = runs.entity[order], hashes[order]
    changes = np.flatnonzero((entity[1:] == entity[:-1]) & (values[1:] != values[:-1]))
    if not changes.size:
        return
    left, right = (int(run) for run in order[changes[0] : changes[0] + 2])
    raise BadSeries(
        f"Static feature {name!r} changes within entity {names.entity(int(runs.entity[left]))}, between "
        f"{names.run(left)} and {names.run(right)}. A static value holds for all steps of an entity: use it as a "
        "column of fb.History instead.",
        blocks=(int(runs.block[left]), int(runs.block[right])),
    )


def _line_order(line: StepLine, runs: BlockRuns) -> NDArray[np.int64]:
    """Index in `runs` of each run of the line.

    `runs` ascend by (block, first).
    """
    order = np.argsort(np.lexsort((line.first, line.block)), kind="stable")
    assert np.array_equal(runs.block[order], line.block)
    return order


def _gaps_within(block: Block, runs: Runs, max_gap: int) -> NDArray[np.int64]:
    """Steps of a block that follow a gap within their run."""
    jumps = np.diff(block.arrays[TIME]) > max_gap
    jumps[runs.ends[:-1] - 1] = False
    return np.flatnonzero(jumps) + 1


def _gap_offsets(
    line: StepLine, times: NDArray[np.int64], gaps: list[NDArray[np.int64]], max_gap: int
) -> NDArray[np.int64]:
    """Offsets that follow a gap, within and between runs."""
    between = np.flatnonzero(times[1:, 0] - times[:-1, 1] > max_gap) + 1
    offsets = [line.starts[between]]
    by_block = np.lexsort((line.first, line.block))
    for block, steps in enumerate(gaps):
        own = by_block[slice(*np.searchsorted(line.block, [block, block + 1], sorter=by_block).tolist())]
        if len(steps):
            run = own[np.searchsorted(line.first[own], steps, side="right") - 1]
            offsets.append(line.starts[run] + steps - line.first[run])
    return np.unique(np.concatenate(offsets))


def first_steps_at(blocks: SeriesBlocks, series: Series, ticks: int) -> NDArray[np.int64]:
    """Steps of each entity before time `ticks`, int64 [entities].

    Reads only the blocks that contain this time.
    """
    line, first, last = series.whole, series.times[:, 0], series.times[:, 1]
    steps = np.diff(line.starts)
    before = np.where(last < ticks, steps, 0)
    cut = np.flatnonzero((first < ticks) & (last >= ticks))
    runs_of: dict[int, list[int]] = {}
    for run in cut.tolist():
        runs_of.setdefault(int(line.block[run]), []).append(run)
    for index, block in blocks.each(sorted(runs_of)):
        for run in runs_of[index]:
            begin = int(line.first[run])
            time = block.arrays[TIME][begin : begin + int(steps[run])]
            before[run] = int(np.searchsorted(time, ticks))
    entity = np.searchsorted(line.entities, line.starts[:-1], side="right") - 1
    counted: NDArray[np.int64] = np.bincount(entity, before, minlength=len(line.entities) - 1).astype(np.int64)
    return counted


REPORT_EVERY_S = 5.0


class PassProgress:
    """Reports the progress of a pass every five seconds.

    A pass that ends before reports nothing.

    Args:
        name: What the pass does, in messages.
        num_rows: Rows of all row groups.
    """

    def __init__(self, name: str, num_rows: int) -> None:
        self._name, self._num_rows, self._done = name, num_rows, 0
        self._began = time.monotonic()
        self._due = self._began + REPORT_EVERY_S

    def add(self, rows: int) -> None:
        """Count `rows` as done."""
        self._done += rows
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + REPORT_EVERY_S
        rate = self._done / max(now - self._began, 1e-9)
        left = clock_text((self._num_rows - self._done) / rate) if rate else "-:--"
        share = share_text(self._done / max(self._num_rows, 1))
        tell(f"{self._name}: {share} of {count_text(self._num_rows)} rows, {rate_text(rate)}, {left} left")
