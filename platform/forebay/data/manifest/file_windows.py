"""Windows of series by file.

A window is a list of spans of neighbouring rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from forebay.data.manifest.file_rows import FileRow, FileRows


class RowSpan(NamedTuple):
    """Neighbouring rows of a row group.

    From `first` to `last`. As text `day=1/a.parquet:3:128..223`.

    The other fields are as in `FileRow`. A span of one row has the text of the row.
    """

    file: str
    row_group: int
    first: int
    last: int
    source: str = ""

    def __str__(self) -> str:
        last = f"..{self.last}" if self.last > self.first else ""
        return f"{FileRow(self.file, self.row_group, self.first)}{last}"


@dataclass(frozen=True, slots=True)
class FileWindow:
    """Rows of one window in the order of its steps.

    As text, its spans separated by commas.

    A window of sorted data has one span in each row group that it reads. Of interleaved series, a span may be one row.
    """

    spans: tuple[RowSpan, ...]

    @property
    def source(self) -> str:
        """Name of the dataset in a mixture. Empty without one."""
        return self.spans[0].source

    def __str__(self) -> str:
        return ", ".join(map(str, self.spans))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileWindows(Sequence[FileWindow]):
    """Rows of windows, as columns.

    Of one or several datasets. Indexing gives a `FileWindow`.

    Attributes:
        firsts: First row of each span.
        last: Number of the last row of each span in its row group, int64 [spans].
        ends: End of each window on the spans, int64 [n].
    """

    firsts: FileRows
    last: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets of a mixture. Empty without one."""
        return self.firsts.names

    def take(self, numbers: NDArray[np.int64]) -> FileWindows:
        """Windows at `numbers`, in that order."""
        starts = np.concatenate([[0], self.ends])
        counts = np.diff(starts)[numbers]
        ends = np.cumsum(counts)
        spans = np.arange(counts.sum()) + np.repeat(starts[numbers] - ends + counts, counts)
        return FileWindows(firsts=self.firsts.take(spans), last=self.last[spans], ends=ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> FileWindow: ...
    @overload
    def __getitem__(self, index: slice) -> FileWindows: ...
    def __getitem__(self, index: int | slice) -> FileWindow | FileWindows:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        number = range(len(self))[index]
        start = int(self.ends[number - 1]) if number else 0
        return FileWindow(tuple(self._spans(range(start, int(self.ends[number])))))

    def _spans(self, numbers: range) -> Iterator[RowSpan]:
        for number in numbers:
            first = self.firsts[number]
            yield RowSpan(first.file, first.row_group, first.row, int(self.last[number]), first.source)

    def __repr__(self) -> str:
        return f"FileWindows({len(self)}: {'; '.join(map(str, self[:2]))}{'; ...' if len(self) > 2 else ''})"
