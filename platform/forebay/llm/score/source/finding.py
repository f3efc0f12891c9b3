"""Source of rows that a URI names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.errors import NoFiles
from forebay.llm.score.source.row_source import RowBlock, RowReader, RowSource
from forebay.llm.score.source.text_rows import count_text_rows
from forebay.llm.source.hub_data import HUB
from forebay.llm.source.text_files import find_text_files
from forebay.llm.source.text_rows import python_rows

_TEXT = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".arrow")


def find_source(data: str) -> RowSource:
    """Find the rows that a URI names.

    Parquet files, JSON Lines (also `.gz` and `.zst`), a folder of the `datasets` library, or a dataset of the Hub
    (`hf:NAME`).

    Raises as `scan` and `find_text_files`, and `InvalidOption` for data without rows.
    """
    if data.startswith(HUB) or data.endswith(_TEXT):
        return _text_source(data)
    try:
        return ManifestRows(scan(data))
    except NoFiles as error:
        # A folder without Parquet may hold text.
        try:
            return _text_source(data)
        except NoFiles:
            raise error from None


def _text_source(data: str) -> RowSource:
    found = find_text_files(data)
    if found.format == "parquet":
        return ManifestRows(scan([file.uri for file in found.files]))
    return count_text_rows(data, found)


@dataclass(frozen=True, slots=True)
class ManifestRows:
    """Rows of a manifest. A `RowSource`."""

    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.root

    @property
    def columns(self) -> tuple[str, ...]:
        return self.manifest.columns

    @property
    def num_rows(self) -> int:
        return self.manifest.num_rows

    @property
    def identity(self) -> str:
        return self.manifest.id

    @property
    def from_arrow(self) -> bool:
        return True

    def open(self, columns: Sequence[str], keep: Sequence[str]) -> RowReader:
        return ParquetReader(self.manifest, columns, keep)


class ParquetReader:
    """`RowReader` of Parquet files. Keeps the last row group."""

    def __init__(self, manifest: Manifest, columns: Sequence[str], keep: Sequence[str]) -> None:
        self._reader = RowGroupReader(manifest)
        self._columns, self._keep = tuple(columns), tuple(keep)
        self._ends = np.cumsum(manifest.kept_rows)
        self._kept: tuple[int, pa.Table] | None = None

    def read(self, start: int, stop: int) -> RowBlock:
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        tables = []
        for group in range(first, last + 1):
            begin = int(self._ends[group - 1]) if group else 0
            table = self._group(group)
            tables.append(table.slice(max(start - begin, 0), min(stop, begin + table.num_rows) - max(start, begin)))
        found = pa.concat_tables(tables)
        rows = python_rows(found)
        errors = {at: f"row {start + at}: {row}" for at, row in enumerate(rows) if isinstance(row, str)}
        return RowBlock(
            rows=[{} if isinstance(row, str) else row for row in rows],
            kept={name: found[name] for name in self._keep},
            errors=errors,
        )

    def _group(self, group: int) -> pa.Table:
        if self._kept is None or self._kept[0] != group:
            self._kept = (group, self._reader.read(group, self._columns))
        return self._kept[1]
