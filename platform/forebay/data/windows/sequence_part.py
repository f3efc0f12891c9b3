"""Part of a split: its windows, transform and statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from forebay.data.manifest.manifest import Manifest
from forebay.data.transform.block import BlockArray
from forebay.data.windows.index import WindowIndex, WindowShape, require_windows
from forebay.data.windows.sequence_block import SequenceTransform, exact_values
from forebay.data.windows.series_blocks import Series, SeriesBlocks
from forebay.data.windows.splits import TargetBounds
from forebay.data.windows.statistics import (
    RESTS,
    ColumnStatistics,
    QuantileCounts,
    Summary,
    any_of,
    fold,
    summarize,
)
from forebay.data.windows.views import WindowViews
from forebay.errors import InvalidOption

Ranges = list[tuple[int, int]]


# Without slots: `cached_property` needs the instance's __dict__.
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPart:
    """Steps that the statistics cover.

    The first part of a split, up to the end of its targets.

    Attributes:
        blocks: Blocks of the dataset.
        series: All series.
        bounds: Steps of each entity that belong to the part.
        quantiles: Shares of the quantiles to count.
    """

    blocks: SeriesBlocks
    series: Series
    bounds: TargetBounds
    quantiles: tuple[float, ...]

    @cached_property
    def statistics(self) -> dict[str, ColumnStatistics]:
        """Statistics of each column.

        A column of two dtypes has the statistics of the first.
        """
        found: dict[str, ColumnStatistics] = {}
        for dtype, columns in self.blocks.transform.step_columns.values.items():
            folded = fold(self._summaries[dtype], columns)
            if self.quantiles and dtype == "float32":
                folded = self._with_quantiles(folded)
            found = folded | found
        return found

    @cached_property
    def _summaries(self) -> Mapping[str, list[Summary]]:
        whole, cut = self._ranges
        found = {dtype: [kept[block] for block in whole] for dtype, kept in self.series.summaries.items()}
        for index, block in self.blocks.each(cut):
            for dtype, kept in found.items():
                kept.append(summarize(_selected(exact_values(block, dtype), cut[index])))
        return found

    @cached_property
    def _ranges(self) -> tuple[list[int], dict[int, Ranges]]:
        """Blocks entirely in the part, and ranges of the others.

        The second value maps each block that is partly in the part to its ranges of steps.
        """
        line = self.series.whole
        entity = np.searchsorted(line.entities, line.starts[:-1], side="right") - 1
        begin, end = line.starts[:-1], line.starts[1:]
        low = np.clip(line.entities[entity] + self.bounds.low[entity], begin, end)
        high = np.clip(line.entities[entity] + self.bounds.high[entity], low, end)
        is_cut = np.zeros(len(self.blocks.manifest), dtype=bool)
        is_cut[line.block[high - low < end - begin]] = True
        whole = np.unique(line.block[~is_cut[line.block]]).tolist()
        ranges: dict[int, Ranges] = {}
        for run in np.flatnonzero(is_cut[line.block] & (high > low)).tolist():
            first = int(line.first[run] + low[run] - begin[run])
            ranges.setdefault(int(line.block[run]), []).append((first, first + int(high[run] - low[run])))
        return whole, {block: sorted(ranges[block]) for block in sorted(ranges)}

    def _with_quantiles(self, folded: dict[str, ColumnStatistics]) -> dict[str, ColumnStatistics]:
        is_rounded = any_of(RESTS, self.series.summaries["float32"])
        counts = [
            QuantileCounts(partial(self._values, number), np.float64 if is_rounded[number] else np.float32)
            for number in range(len(folded))
        ]
        return {
            name: replace(column, quantiles=counts[number].at(self.quantiles))
            for number, (name, column) in enumerate(folded.items())
        }

    def _values(self, column: int) -> Iterator[BlockArray]:
        """Values of a float32 column by block."""
        whole, cut = self._ranges
        for index, block in self.blocks.each(sorted([*whole, *cut])):
            values = exact_values(block, "float32")
            yield (_selected(values, cut[index]) if index in cut else values)[:, column]


def validate_quantiles(shares: Sequence[float]) -> tuple[float, ...]:
    """Shares of quantiles.

    Raises `InvalidOption` for a share outside [0, 1].
    """
    try:
        found = tuple(float(share) for share in shares)
    except (TypeError, ValueError):
        found = (-1.0,)
    if any(not 0 <= share <= 1 for share in found):
        raise InvalidOption(f"quantiles={shares!r}: give shares from 0 to 1, such as (0.5, 0.9).", quantiles=shares)
    return found


def _selected(values: BlockArray, ranges: Ranges) -> BlockArray:
    return np.concatenate([values[first:stop] for first, stop in ranges])


# Without slots: `cached_property` needs the instance's __dict__.
@dataclass(frozen=True, kw_only=True, eq=False)
class SequencePart:
    """Windows of one part of a split.

    `build_plan` orders them, `transform` makes their batches.

    Attributes:
        name: Name of the part in errors.
        shape: Steps of a window.
        bounds: Steps of each entity that may be targets.
        training: Training part, over which statistics are computed: the first one of the split.
        views_of: Returns the arrays of a batch for these statistics.
        data_id: Digest of the data, the entity and the time.
    """

    name: str
    shape: WindowShape
    bounds: TargetBounds
    training: TrainingPart
    views_of: Callable[[Mapping[str, ColumnStatistics]], WindowViews]
    data_id: str

    @property
    def manifest(self) -> Manifest:
        """Row groups of the data."""
        return self.training.blocks.manifest

    @cached_property
    def windows(self) -> WindowIndex:
        """Index of the windows.

        Raises `InvalidOption` if the part has none.
        """
        line, num_blocks = self.training.series.line, len(self.manifest)
        index = WindowIndex(line, self.shape, self.bounds, num_blocks=num_blocks, data_id=self.data_id)
        require_windows(index, self.name)
        return index

    @property
    def num_windows(self) -> int:
        """Number of windows."""
        return self.windows.num_windows

    @property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Statistics of each column, over the training part."""
        return self.training.statistics

    @cached_property
    def transform(self) -> SequenceTransform:
        """Transform for `Data` and `Loader`."""
        return SequenceTransform(self.training.blocks.transform.step_columns, self.views_of(self.statistics))
