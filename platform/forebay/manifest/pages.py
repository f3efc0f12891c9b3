"""Pages of one row group. Fetching may fail because of storage. Decoding is separate, and fails only on bad content."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.manifest.schemas import leaves

DECODE_ERRORS = (OSError, MemoryError, pa.ArrowException)
"""Errors of decoding. pyarrow has no type of its own for bad pages."""

_REMOTE_HOLE_BYTES = 1 << 20
"""Over a network, reading 1 MiB that is not needed takes less time than another request."""
_PADDING_BYTES = 100
"""Some old writers state column chunks up to this many bytes too short (PARQUET-816). The decoder reads past
their end.
"""


class _Run(NamedTuple):
    """Bytes of a file from `start` to `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pages:
    """Fetched parts of a row group, enough to decode `columns`. `source_bytes` is the compressed size of these
    columns.
    """

    footer: pq.FileMetaData
    index: int
    columns: tuple[str, ...]
    source_bytes: int
    file: FetchedFile


class FetchedFile(io.RawIOBase):
    """Fetched parts of a file, at their positions. Reading elsewhere raises `OSError`."""

    def __init__(self, size: int, parts: Sequence[tuple[int, pa.Buffer]]) -> None:
        self._size = size
        self._parts = [(start, memoryview(part)) for start, part in parts]
        self._at = 0

    def readable(self) -> bool:
        """Return True, so that pyarrow reads from it."""
        return True

    def seekable(self) -> bool:
        """Return True, so that pyarrow reads at any position."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, as in `io`."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Bytes from the position on, without a copy."""
        stop = self._size if size < 0 else min(self._at + size, self._size)
        for start, part in self._parts:
            if start <= self._at and stop <= start + len(part):
                found = part[self._at - start : stop - start]
                self._at = stop
                return found
        raise OSError(f"the pages of this row group are not at bytes {self._at} to {stop}, according to its footer")


def fetch(file: pa.NativeFile, footer: pq.FileMetaData, index: int, columns: Sequence[str], *, local: bool) -> Pages:
    """Read the pages of `columns` of row group `index`. Raises `OSError`, also if fewer bytes came than expected.

    `footer` must have passed `check_chunks`. From `local` files, the bytes between the columns are not read.
    """
    size = file.size()
    chunks = sorted(_chunks(footer, index, columns))
    parts = []
    for run in _runs(chunks, size, hole_bytes=0 if local else _REMOTE_HOLE_BYTES):
        part = file.read_buffer(run.stop - run.start) if file.seek(run.start) == run.start else None
        if part is None or part.size != run.stop - run.start:
            found = part.size if part else 0
            raise OSError(f"{found} of {run.stop - run.start} bytes came from byte {run.start} on")
        parts.append((run.start, part))
    return Pages(
        footer=footer,
        index=index,
        columns=tuple(columns),
        source_bytes=sum(run.stop - run.start for run in chunks),
        file=FetchedFile(size, parts),
    )


def decode(pages: Pages) -> pa.Table:
    """Decode the table in the calling thread. Raises one of `DECODE_ERRORS`."""
    columns = list(pages.columns)
    parquet = pq.ParquetFile(pages.file, metadata=pages.footer, pre_buffer=False, page_checksum_verification=True)
    table = parquet.read_row_group(pages.index, columns=columns, use_threads=False).select(columns)
    # Finds what the decoder does not check: text that is not UTF-8, and dictionary indices out of range.
    table.validate(full=True)
    rows = pages.footer.row_group(pages.index).num_rows
    if columns and table.num_rows != rows:
        raise pa.ArrowInvalid(f"its pages hold {table.num_rows} rows, but its footer states {rows}")
    return table


def is_too_much_nested_text(error: BaseException) -> bool:
    """Whether decoding failed because the text of a nested column does not fit into one array of Arrow (2 GiB)."""
    return isinstance(error, pa.ArrowNotImplementedError) and "chunked array outputs" in str(error)


def nested_columns(pages: Pages) -> tuple[str, ...]:
    """Fetched columns that are lists, maps or structs."""
    schema = pages.footer.schema.to_arrow_schema()
    return tuple(name for name in pages.columns if pa.types.is_nested(schema.field(name).type))


def _chunks(footer: pq.FileMetaData, index: int, columns: Sequence[str]) -> Iterator[_Run]:
    row_group = footer.row_group(index)
    for leaf in leaves(footer, columns):
        chunk = row_group.column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        yield _Run(start, start + chunk.total_compressed_size)


def _runs(chunks: Iterable[_Run], size: int, *, hole_bytes: int) -> list[_Run]:
    """Chunks, joined if no more than `hole_bytes` lie between them."""
    runs: list[_Run] = []
    for start, end in chunks:
        stop = min(end + _PADDING_BYTES, size)
        if runs and start <= runs[-1].stop + hole_bytes:
            runs[-1] = _Run(runs[-1].start, max(runs[-1].stop, stop))
        else:
            runs.append(_Run(start, stop))
    return runs
