"""Footers of Parquet files.

Fetching may fail because of storage. Decoding is separate, and fails only on bad content.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.footer_store import FooterStore, facts_name, footer_name, kept_version
from forebay.data.parquet.other_formats import HEAD_BYTES, MAGIC, encrypted, footer_missing
from forebay.data.parquet.parquet_columns import ParquetColumns, columns_of
from forebay.errors import CorruptFile
from forebay.runtime.uris import has_local_name
from forebay.storage.range_reader import RangeReader
from forebay.storage.versions import FoundFile

_TRAILER_BYTES = 8
_LEAST_TAIL_BYTES, _MOST_TAIL_BYTES = 1 << 13, 1 << 16
_SHARE_OF_FILE = 32
"""64 KiB of each file were 0.15 of all bytes in files of 0.4 MB, whose footers have 8 kB."""
_OF_EXTENSIONS = (AttributeError, KeyError, TypeError, ValueError)
"""Errors of the process's extension types, such as Ray Data's, when a footer names one but its metadata is invalid."""
_MOST_CACHED_BYTES = 32 << 20


class FooterSizes:
    """Sizes of the footers of a dataset that were read so far. Files of a dataset have similar ones."""

    def __init__(self) -> None:
        self._largest = 0

    def add(self, num_bytes: int) -> None:
        """Record a footer."""
        self._largest = max(self._largest, num_bytes)

    def tail_bytes(self, size: int) -> int:
        """Bytes to read from the end of a file of `size` bytes. Large footers then take one request, too."""
        share = size // _SHARE_OF_FILE
        if not self._largest:
            return min(max(share, _LEAST_TAIL_BYTES), _MOST_TAIL_BYTES)
        # One odd file must not make the others read more than their share.
        return min(max(self._largest + self._largest // 4, _LEAST_TAIL_BYTES), max(share, _MOST_TAIL_BYTES))


def fetch_footer(uri: str, file: pa.NativeFile, sizes: FooterSizes | None = None) -> pa.Buffer:
    """Read the footer of `file` as a Parquet file without pages.

    Usually costs one read. `sizes` has the footers of the dataset so far.

    Raises:
        CorruptFile: The file has no footer.
        OSError: Storage failed.
    """
    size, sizes = file.size(), sizes or FooterSizes()
    first = min(size, sizes.tail_bytes(size))
    tail = file.read_at(first, size - first)
    if len(tail) < _TRAILER_BYTES + len(MAGIC) or tail[-len(MAGIC) :] != MAGIC:
        raise footer_missing(uri, size, file.read_at(min(size, HEAD_BYTES), 0), tail[-len(MAGIC) :])
    needed = int.from_bytes(tail[-_TRAILER_BYTES : -len(MAGIC)], "little") + _TRAILER_BYTES
    if needed > size - len(MAGIC):
        raise _corrupt(uri, f"its footer claims {needed} bytes of a file of {size} bytes")
    if needed > len(tail):
        tail = file.read_at(needed, size - needed)
    sizes.add(needed)
    return pa.py_buffer(MAGIC + tail[-needed:])


def decode_footer(uri: str, footer: pa.Buffer) -> pq.FileMetaData:
    """Decode the result of `fetch_footer`.

    Raises `CorruptFile` if it cannot be decoded.
    """
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError, UnicodeDecodeError, *_OF_EXTENSIONS) as error:
        if _is_encryption(error):
            raise encrypted(uri) from error
        raise _corrupt(uri, f"its footer cannot be decoded ({error})") from error


def _is_encryption(error: Exception) -> bool:
    """Whether Arrow found encrypted columns: their footer may be plain."""
    return "crypt" in str(error)


def _corrupt(uri: str, found: str) -> CorruptFile:
    return CorruptFile(f"{uri} is corrupt: {found}. Write or copy the file again, or leave it out.", uri=uri)


@dataclass(frozen=True, eq=False)
class Footer:
    """Decoded footer of a file.

    `codecs` [row groups, columns] are Parquet's numbers of the codecs. pyarrow (26.0.1) ends the process for a number
    that it does not know. None in a process that has not loaded the kernels, and for a footer of another form.
    """

    metadata: pq.FileMetaData
    codecs: NDArray[np.int64] | None

    @cached_property
    def columns(self) -> ParquetColumns:
        """Facts about the columns, made at the first use."""
        return columns_of(self.metadata)


def read_codecs(footer: pa.Buffer, metadata: pq.FileMetaData) -> NDArray[np.int64] | None:
    """Codecs of the column chunks of a footer.

    `footer` is the result of `fetch_footer`. None if this process has not loaded the kernels.
    """
    if not kernels.is_loaded():
        return None
    start = footer.address + len(MAGIC)
    return kernels.read_codecs(start, footer.size - len(MAGIC), metadata.num_row_groups, metadata.num_columns)


class FooterCache:
    """LRU cache of decoded footers, safe for threads.

    Holds up to 32 MiB in serialized size, several times that decoded.

    Behind them is the `store` of all processes of the node, if there is one.
    """

    def __init__(
        self, store: FooterStore | None = None, most_bytes: int = _MOST_CACHED_BYTES, *, stores_new: bool = True
    ) -> None:
        self._stores_new = stores_new
        self._store = store
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._footers: OrderedDict[FoundFile, Footer] = OrderedDict()
        self._bytes = 0

    def get(self, version: FoundFile) -> Footer | None:
        """Return a cached footer, or None."""
        with self._lock:
            if version in self._footers:
                self._footers.move_to_end(version)
            return self._footers.get(version)

    def stored(self, version: FoundFile) -> pa.Buffer | None:
        """Return the stored bytes of a footer, unchecked.

        They are what `fetch_footer` gave in any process of the node. None without any, and for a local file whose row
        groups are read next: opening the store takes longer than reading its footer.
        """
        if not self._stores_new and has_local_name(version.uri):
            return None
        if self._store is None or not (kept := kept_version(version)):
            return None
        with closing(self._store):
            content = self._store.get(footer_name(version, kept))
        return None if content is None else pa.py_buffer(content)

    def forget(self, version: FoundFile) -> None:
        """Remove the stored footer of a wrong version."""
        if self._store is not None and (kept := kept_version(version)):
            with closing(self._store):
                self._store.forget(footer_name(version, kept))
                self._store.forget(facts_name(version, kept))

    def put(self, version: FoundFile, footer: Footer, content: pa.Buffer | None = None) -> None:
        """Add a footer, and evict the least recently used ones.

        Stores `content`, if it was fetched.
        """
        if self._stores_new and content is not None and self._store is not None and (kept := kept_version(version)):
            with closing(self._store):
                self._store.put([(footer_name(version, kept), content.to_pybytes())])
        with self._lock:
            if version in self._footers:
                return
            self._footers[version] = footer
            self._bytes += footer.metadata.serialized_size
            while self._bytes > self._most_bytes and len(self._footers) > 1:
                _, dropped = self._footers.popitem(last=False)
                self._bytes -= dropped.metadata.serialized_size


class _FooterOnly(RangeReader):
    """A file without content, for checking footers.

    `was_read` is set once the decoder went past the footer.

    It reports end of file instead of raising. pyarrow (26.0.1) never releases a Python exception: with it, the frames
    on its way and the pages of a row group would stay in memory.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.was_read = False

    def read_range(self, _start: int, _stop: int) -> bytes:
        self.was_read = True
        return b""

    def read(self, _: int | None = -1) -> bytes:
        # Also past the end: that is for the fetch to find.
        return self.read_range(0, 0)


def check_chunks(uri: str, footer: pq.FileMetaData, size: int) -> None:
    """Check the facts of a footer about its column chunks.

    Raises `CorruptFile` if they contradict each other or the file's size.

    On such a chunk, `RowGroupMetaData.column()` of pyarrow (seen in 26.0.1) ends the whole process, because a C++
    exception escapes. Reading does not. So this begins to read everything from a file without pages: that checks every
    chunk, and stops at the first page.
    """
    for number in range(footer.num_row_groups):
        chunks = footer.row_group(number).num_columns
        if chunks != footer.num_columns:
            raise _corrupt(uri, f"its footer gives row group {number} {chunks} chunks for {footer.num_columns} columns")
    pages = _FooterOnly(size)
    try:
        pq.ParquetFile(pa.PythonFile(pages, mode="r"), metadata=footer, pre_buffer=True).read_row_groups(
            range(footer.num_row_groups), use_threads=False
        )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if pages.was_read:
            return
        if _is_encryption(error):
            raise encrypted(uri) from error
        raise _corrupt(uri, f"its footer contradicts itself ({error})") from error


def check_types(uri: str, footer: pq.FileMetaData) -> None:
    """Check that each chunk has its column's type.

    Raises `CorruptFile`. Otherwise, pruning by statistics would end the process.
    """
    types = [footer.schema.column(leaf).physical_type for leaf in range(footer.num_columns)]
    for number in range(footer.num_row_groups):
        row_group = footer.row_group(number)
        if [row_group.column(leaf).physical_type for leaf in range(row_group.num_columns)] != types:
            raise _corrupt(uri, f"its footer gives row group {number} columns of other types than its schema")
