"""Part of a split of sequences: what a plan orders, and the transform of its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from forebay.data.manifest.manifest import Manifest
from forebay.data.windows.index import TargetBounds, WindowIndex, require_windows
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.data.windows.shape import WindowShape
from forebay.data.windows.statistics import ColumnStatistics
from forebay.data.windows.training_part import TrainingPart
from forebay.data.windows.views import WindowViews


# Without slots: `cached_property` needs the instance's __dict__.
@dataclass(frozen=True, kw_only=True, eq=False)
class SequencePart:
    """Windows of one part of a split. `build_plan` orders them, `transform` makes their batches.

    Attributes:
        name: Name of the part in errors.
        shape: Steps of a window.
        bounds: Steps of each entity that may be targets.
        training: Part that the statistics are of: the first one of the split.
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
        """Index of the windows. Raises `InvalidOption` if there is none."""
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
