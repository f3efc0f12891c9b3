"""Rows of a manifest by their number in the source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from forebay.manifest.manifest import Manifest
from forebay.manifest.reading import RowGroupReader


class SourceRows:
    """Reads ranges of rows. Keeps the last row group, because ranges are read one after the other."""

    def __init__(self, manifest: Manifest, columns: Sequence[str]) -> None:
        self._reader = RowGroupReader(manifest)
        self._columns = tuple(columns)
        self._ends = np.cumsum(manifest.rows)
        self._kept: tuple[int, pa.Table] | None = None

    def read(self, start: int, stop: int) -> pa.Table:
        """Rows `start` to `stop`, which exist. Raises as `RowGroupReader.read`."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        tables = []
        for group in range(first, last + 1):
            begin = int(self._ends[group - 1]) if group else 0
            table = self._group(group)
            tables.append(table.slice(max(start - begin, 0), min(stop, begin + table.num_rows) - max(start, begin)))
        return pa.concat_tables(tables)

    def _group(self, group: int) -> pa.Table:
        if self._kept is None or self._kept[0] != group:
            self._kept = (group, self._reader.read(group, self._columns))
        return self._kept[1]
