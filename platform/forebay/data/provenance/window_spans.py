"""File rows of windows over series.

The columns that sort the steps of a row group are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forebay.data.manifest.file_rows import FileRows
from forebay.data.manifest.file_windows import FileWindows
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.plan.permute import Ints
from forebay.data.windows.index import WindowIndex
from forebay.data.windows.steps import StepColumns, sorted_steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowSpans:
    """Spans of neighbouring rows, in window and step order.

    Attributes:
        block: Row group of each span, numbered over all datasets, int64 [spans].
        first: First row of each span, int64 [spans].
        last: Last row of each span, int64 [spans].
        ends: End of each window on the spans, int64 [windows].
    """

    block: Ints
    first: Ints
    last: Ints
    ends: Ints

    def named(self, manifests: Sequence[Manifest], names: Sequence[str]) -> FileWindows:
        """Spans by the files of the manifests."""
        firsts = FileRows.of(manifests, self.block, self.first, names)
        return FileWindows(firsts=firsts, last=self.last, ends=self.ends)

    def rows(self) -> tuple[Ints, Ints, Ints]:
        """Window, row group and row of each row.

        The arrays cover all spans, int64 [rows] each.
        """
        window = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        counts = self.last - self.first + 1
        row = np.arange(counts.sum()) + np.repeat(self.first - np.cumsum(counts) + counts, counts)
        return np.repeat(window, counts), np.repeat(self.block, counts), row


class StepOrder:
    """Row of each step, by block of a dataset.

    Steps of a block are sorted by entity and time, so these columns are read again, of each row group once. Without
    both, steps are rows, and nothing is read.

    Args:
        manifest: Row groups.
        keys: Columns that sort the steps.
    """

    def __init__(self, manifest: Manifest, keys: StepColumns) -> None:
        self._manifest, self._keys = manifest, keys
        self._reader: RowGroupReader | None = None

    def of(self, block: Ints, step: Ints) -> Ints:
        """Row of each `step` of `block`, int64 [n].

        Raises the errors of reading.
        """
        if self._keys.has_rows_as_steps:
            return step
        if self._reader is None:
            self._reader = RowGroupReader(self._manifest)
        row = np.empty_like(step)
        for each in np.unique(block).tolist():
            own = block == each
            row[own] = sorted_steps(self._keys, self._reader.read(each, self._keys.columns)).row[step[own]]
        return row


def window_spans(
    indices: Sequence[WindowIndex], rows_of: Sequence[StepOrder], block: Ints, row: Ints, shift: Ints
) -> WindowSpans:
    """Find the file rows of windows.

    Windows `row` of `block`, numbered over all datasets, each moved by its `shift`. All int64 [n]. A window has the
    rows from its first real step to its last target, also those between look-aheads and of a gap. Raises the errors of
    reading.
    """
    parts = list(_rows_of_sources(indices, rows_of, block, row, shift))
    window, row_block, row = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Windows of several datasets: in the order of the batch, without moving the steps of one.
    order = np.argsort(window, kind="stable")
    window, row_block, row = window[order], row_block[order], row[order]
    # The steps of a list are one row.
    goes_on = np.isin(np.diff(row), (0, 1)) & (np.diff(row_block) == 0) & (np.diff(window) == 0)
    first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    last = np.append(first[1:], len(row)) - 1
    ends = np.searchsorted(window[first], np.arange(len(block)), side="right")
    return WindowSpans(block=row_block[first], first=row[first], last=row[last], ends=ends.astype(np.int64))


def _rows_of_sources(
    indices: Sequence[WindowIndex], rows_of: Sequence[StepOrder], block: Ints, row: Ints, shift: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Window, block and row of each step, by dataset."""
    first_block = np.cumsum([0, *(len(index.rows) for index in indices)])
    source_of = np.searchsorted(first_block, block, side="right") - 1
    for source in np.unique(source_of).tolist():
        own = np.flatnonzero(source_of == source)
        windows = indices[source].locate(block[own] - first_block[source], row[own], shift[own])
        window, own_block, step = indices[source].steps_of(windows)
        yield own[window], own_block + first_block[source], rows_of[source].of(own_block, step)
