"""The pages of one row group to a table."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

DECODE_ERRORS = (OSError, pa.ArrowException)
"""What decoding raises: pyarrow has no type of its own for bad pages, nor for storage that fails in between."""


def decode(file: pa.NativeFile | WatchedFile, footer: pq.FileMetaData, index: int, columns: Sequence[str]) -> pa.Table:
    """Row group `index` of `file`, in the calling thread; raises one of `DECODE_ERRORS`."""
    parquet = pq.ParquetFile(file, metadata=footer, pre_buffer=True, page_checksum_verification=True)
    table = parquet.read_row_group(index, columns=list(columns), use_threads=False).select(list(columns))
    # Finds what the decoder lets through: text that is no UTF-8, dictionary indices out of range.
    table.validate(full=True)
    rows = footer.row_group(index).num_rows
    if columns and table.num_rows != rows:
        raise pa.ArrowInvalid(f"its pages hold {table.num_rows} rows and its footer says {rows}")
    return table


class WatchedFile(io.RawIOBase):
    """A file that remembers its `failure`, which tells storage that fails from content that cannot be decoded."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.failure: OSError | None = None

    def readable(self) -> bool:
        """Make pyarrow take this for a file it can read."""
        return True

    def seekable(self) -> bool:
        """Make pyarrow take this for a file of random access."""
        return True

    def tell(self) -> int:
        """The position, in bytes."""
        position: int = self._file.tell()
        return position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, as `io` files do."""
        position: int = self._file.seek(offset, whence)
        return position

    def read(self, size: int = -1) -> bytes:
        """Read on from the position; a failure is kept."""
        try:
            content: bytes = self._file.read(None if size < 0 else size)
        except OSError as error:
            self.failure = error
            raise
        return content
