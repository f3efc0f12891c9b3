"""Rows or windows of an order, with their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.manifest.file_rows import FileRows
from forebay.data.manifest.file_windows import FileWindows
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.plan.order import Order, PositionedRows
from forebay.data.plan.permute import Ints
from forebay.data.provenance.window_spans import StepOrder, WindowSpans, window_spans
from forebay.data.transform.dataset import Dataset
from forebay.data.windows.index import window_indices
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.data.windows.steps import StepColumns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderRows:
    """Rows of an order, or windows over series.

    Attributes:
        order: Their order.
        keys: Columns that sort the steps of each dataset. Empty for rows.
        block: Row group of each, numbered over all datasets, int64 [n].
        row: Number in the row group, int64 [n].
        shift: Steps by which each window is moved, int64 [n]. 0 for rows.
    """

    order: Order
    keys: tuple[StepColumns, ...]
    block: Ints
    row: Ints
    shift: Ints

    @classmethod
    def at(
        cls, order: Order, keys: Sequence[StepColumns], spans: Iterable[tuple[int, int, int]], lanes: Sequence[int]
    ) -> OrderRows:
        """Rows of the given lanes within each span, by position.

        A span is `(epoch, start, stop)`, and `lanes` ascend.
        """
        parts, shifts = [], []
        for epoch, start, stop in spans:
            parts.append(order.positioned_rows(epoch, start, stop, lanes))
            shifts.append(_shifts(order, epoch, parts[-1]))
        return cls(
            order=order,
            keys=tuple(keys),
            block=np.concatenate([part.block for part in parts]),
            row=np.concatenate([part.row for part in parts]),
            shift=np.concatenate(shifts),
        )

    def __len__(self) -> int:
        return len(self.row)

    @property
    def noun(self) -> str:
        """Noun for the entries: rows or windows."""
        return "windows" if self.order.windows else "rows"

    def take(self, numbers: Ints | slice) -> OrderRows:
        """Select the rows at `numbers`, in that order.

        A mask is allowed.
        """
        return replace(self, block=self.block[numbers], row=self.row[numbers], shift=self.shift[numbers])

    def named(self) -> FileRows | FileWindows:
        """Name the file, row group and row of each.

        Windows of sorted data read the columns that sort their row groups, and raise the errors of `RowGroupReader`.
        Rows read nothing.
        """
        if self.order.windows:
            return self._spans().named(self.order.manifests, self.order.names)
        return FileRows.of(self.order.manifests, self.block, self.row, self.order.names)

    def values(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Read the values of each row, by column.

        Values are as in the files. For a window, a list of the values of its rows. Raises as `RowGroupReader`: a file
        may be missing, or changed.
        """
        manifests = self.order.manifests
        if not self.order.windows:
            return row_values(manifests, self.block, self.row, columns)
        window, block, row = self._spans().rows()
        found: list[dict[str, Any]] = [{} for _ in self.row]
        for number, values in zip(window.tolist(), row_values(manifests, block, row, columns), strict=True):
            for name, value in values.items():
                found[number].setdefault(name, []).append(value)
        return found

    def _spans(self) -> WindowSpans:
        if not len(self):
            empty = np.empty(0, dtype=np.int64)
            return WindowSpans(block=empty, first=empty, last=empty, ends=empty)
        rows_of = [StepOrder(*each) for each in zip(self.order.manifests, self.keys, strict=True)]
        return window_spans(window_indices(self.order), rows_of, self.block, self.row, self.shift)


def step_keys(datasets: Sequence[Dataset]) -> tuple[StepColumns, ...]:
    """Columns that order each dataset's steps.

    Empty for datasets of rows.
    """
    makers = [each.transform for each in datasets]
    return tuple(each.step_columns.keys() for each in makers if isinstance(each, SequenceTransform))


def _shifts(order: Order, epoch: int, rows: PositionedRows) -> Ints:
    """Shift of each window, in steps, int64 [n].

    0 for rows.
    """
    shifts = np.zeros_like(rows.position)
    if order.windows:
        source_of = np.searchsorted(np.cumsum([len(each) for each in order.manifests]), rows.block, side="right")
        for source in np.unique(source_of).tolist():
            own = source_of == source
            shifts[own] = order.window_shifts(epoch, rows.position[own], source)
    return shifts


def row_values(
    manifests: Sequence[Manifest],
    block: NDArray[np.int64],
    row: NDArray[np.int64],
    columns: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Read rows of row groups, by column.

    Row `row[i]` of row group `block[i]`. Row groups are numbered over all manifests. Reads each row group once, as a
    whole. `columns` None: all columns of each manifest. Raises as `RowGroupReader`.
    """
    ends = np.cumsum([len(manifest) for manifest in manifests])
    found: list[dict[str, Any]] = [{} for _ in block]
    readers = [RowGroupReader(manifest) for manifest in manifests]
    for each in np.unique(block).tolist():
        number = int(np.searchsorted(ends, each, side="right"))
        reader = readers[number]
        own = np.flatnonzero(block == each)
        table = reader.decode(reader.fetch(each - int(ends[number]) + len(manifests[number]), columns))
        values = table.take(pa.array(row[own])).to_pylist()
        for index, value in zip(own.tolist(), values, strict=True):
            found[index] = value
    return found
