"""Fetch the encoded pages of one row group.

Only storage can make that fail.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.parquet.footer import Footer
from forebay.runtime.memory.pool import empty_array
from forebay.storage.range_reader import RangeReader

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
    """Fetched parts of a row group, enough to decode `columns`.

    `leaves` are the numbers of their column chunks, and `ranges` where each starts and stops, int64 [leaves, 2].
    `num_values` is how many entries the footer states for each, int64 [leaves]. `source_bytes` is the compressed size
    of these columns.
    """

    footer: Footer
    index: int
    columns: tuple[str, ...]
    leaves: tuple[int, ...]
    ranges: NDArray[np.int64]
    num_values: NDArray[np.int64]
    source_bytes: int
    file: FetchedFile


class FetchedFile(RangeReader):
    """Fetched parts of a file.

    Reading elsewhere raises `OSError`.
    """

    def __init__(self, size: int, parts: Sequence[tuple[int, pa.Buffer]]) -> None:
        super().__init__(size)
        self._parts = [(start, memoryview(part)) for start, part in parts]
        self._memory = [(start, part.address, part.size) for start, part in parts]

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return bytes without a copy."""
        for begin, part in self._parts:
            if begin <= start and stop <= begin + len(part):
                return part[start - begin : stop - begin]
        raise OSError(f"the pages of this row group are not at bytes {start} to {stop}, according to its footer")

    def addresses(self, ranges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Addresses of byte ranges of the file, int64 [n].

        Range i goes from `ranges[i, 0]` to `ranges[i, 1]`. 0: not fetched.
        """
        found = np.zeros(len(ranges), np.int64)
        starts, stops = ranges.T
        for begin, address, size in self._memory:
            is_here = (starts >= begin) & (stops >= starts) & (stops <= begin + size)
            found[is_here] = starts[is_here] + (address - begin)
        return found


def fetch(
    file: pa.NativeFile, footer: Footer, index: int, columns: Sequence[str], *, local: bool, mapped: str = ""
) -> Pages:
    """Read the pages of `columns` of row group `index`.

    Raises `OSError`, also if fewer bytes came than expected.

    The footer must have passed `check_chunks`. From `local` files, the bytes between the columns are not read. `mapped`
    is the path of a local file whose pages are mapped, not copied. Until they are decoded it must not be cut: that
    would end the process.
    """
    size, columns = file.size(), footer.columns.decodable(columns)
    leaves = footer.columns.leaves(columns)
    ranges, num_values = _ranges(footer, index, leaves)
    parts = []
    for run in _runs(ranges, size, hole_bytes=0 if local else _REMOTE_HOLE_BYTES):
        part = _map(mapped, run) if mapped else None
        if part is None:
            part = _read(file, run, local=local) if file.seek(run.start) == run.start else None
        if part is None or part.size != run.stop - run.start:
            found = part.size if part else 0
            raise OSError(f"{found} of {run.stop - run.start} bytes came from byte {run.start} on")
        parts.append((run.start, part))
    return Pages(
        footer=footer,
        index=index,
        columns=columns,
        leaves=leaves,
        ranges=ranges,
        num_values=num_values,
        source_bytes=int((ranges[:, 1] - ranges[:, 0]).sum()),
        file=FetchedFile(size, parts),
    )


def _read(file: pa.NativeFile, run: _Run, *, local: bool) -> pa.Buffer:
    """Read the bytes of `run` from the position on."""
    if not local:
        # Filesystems in Python return bytes of their own, which this takes without a copy.
        return file.read_buffer(run.stop - run.start)
    memory = empty_array((run.stop - run.start,), np.uint8)
    return pa.py_buffer(memory[: file.readinto(memory)])


def _map(path: str, run: _Run) -> pa.Buffer | None:
    """Map the bytes of `run`, and read the missing ones into memory.

    None where files cannot be mapped.
    """
    begin = run.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with Path(path).open("rb") as file, suppress(OSError, ValueError):
        # Filled at once: a page at a time, by faults while it decodes, a cold disk would be slow and hold a core.
        flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
        memory = mmap.mmap(file.fileno(), run.stop - begin, flags=flags, prot=mmap.PROT_READ, offset=begin)
        return pa.py_buffer(memory).slice(run.start - begin, run.stop - run.start)
    return None


def _ranges(footer: Footer, index: int, leaves: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes and numbers of entries of column chunks.

    int64 [leaves, 2] and [leaves].
    """
    row_group = footer.metadata.row_group(index)
    ranges, num_values = [], []
    for leaf in leaves:
        chunk = row_group.column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        ranges.append((start, start + chunk.total_compressed_size))
        num_values.append(chunk.num_values)
    return np.array(ranges, np.int64).reshape(-1, 2), np.array(num_values, np.int64)


def _runs(ranges: NDArray[np.int64], size: int, *, hole_bytes: int) -> list[_Run]:
    """Merge chunks at `ranges` into reads.

    Chunks are joined if no more than `hole_bytes` lie between them.
    """
    if not len(ranges):
        return []
    starts, stops = ranges[np.argsort(ranges[:, 0], kind="stable")].T
    stops = np.maximum.accumulate(np.minimum(stops + _PADDING_BYTES, size))
    firsts = np.flatnonzero(starts[1:] > stops[:-1] + hole_bytes) + 1
    begins, ends = starts[[0, *firsts]].tolist(), stops[[*(firsts - 1), -1]].tolist()
    return [_Run(start, stop) for start, stop in zip(begins, ends, strict=True)]
