"""Fetches the encoded pages of one row group. Only storage can make that fail."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from forebay.manifest.footer import Footer

_REMOTE_HOLE_BYTES = 1 << 20
"""Over a network, reading 1 MiB that is not needed takes less time than another request."""
_PADDING_BYTES = 100
"""Some old writers state column chunks up to this many bytes too short (PARQUET-816). The decoder reads past
their end.
"""


class ChunkPlace(NamedTuple):
    """Bytes of a file from `start` to `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pages:
    """Fetched parts of a row group, enough to decode `columns`.

    `chunks` are the places of the column chunks, by number. `source_bytes` is the compressed size of these columns.
    """

    footer: Footer
    index: int
    columns: tuple[str, ...]
    chunks: Mapping[int, ChunkPlace]
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
        found = self.part(self._at, stop)
        if found is None:
            raise OSError(f"the pages of this row group are not at bytes {self._at} to {stop}, according to its footer")
        self._at = stop
        return found

    def part(self, start: int, stop: int) -> memoryview | None:
        """Bytes from `start` to `stop`, without a copy. None if they were not fetched."""
        for begin, part in self._parts:
            if begin <= start and stop <= begin + len(part):
                return part[start - begin : stop - begin]
        return None


def fetch(file: pa.NativeFile, footer: Footer, index: int, columns: Sequence[str], *, local: bool) -> Pages:
    """Read the pages of `columns` of row group `index`. Raises `OSError`, also if fewer bytes came than expected.

    The footer must have passed `check_chunks`. From `local` files, the bytes between the columns are not read.
    """
    size = file.size()
    chunks = dict(_chunks(footer, index, columns))
    parts = []
    for run in _runs(sorted(chunks.values()), size, hole_bytes=0 if local else _REMOTE_HOLE_BYTES):
        part = file.read_buffer(run.stop - run.start) if file.seek(run.start) == run.start else None
        if part is None or part.size != run.stop - run.start:
            found = part.size if part else 0
            raise OSError(f"{found} of {run.stop - run.start} bytes came from byte {run.start} on")
        parts.append((run.start, part))
    return Pages(
        footer=footer,
        index=index,
        columns=tuple(columns),
        chunks=chunks,
        source_bytes=sum(run.stop - run.start for run in chunks.values()),
        file=FetchedFile(size, parts),
    )


def _chunks(footer: Footer, index: int, columns: Sequence[str]) -> Iterator[tuple[int, ChunkPlace]]:
    row_group = footer.metadata.row_group(index)
    for leaf in footer.columns.leaves(columns):
        chunk = row_group.column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        yield leaf, ChunkPlace(start, start + chunk.total_compressed_size)


def _runs(chunks: Iterable[ChunkPlace], size: int, *, hole_bytes: int) -> list[ChunkPlace]:
    """Chunks, joined if no more than `hole_bytes` lie between them."""
    runs: list[ChunkPlace] = []
    for start, end in chunks:
        stop = min(end + _PADDING_BYTES, size)
        if runs and start <= runs[-1].stop + hole_bytes:
            runs[-1] = ChunkPlace(runs[-1].start, max(runs[-1].stop, stop))
        else:
            runs.append(ChunkPlace(start, stop))
    return runs
