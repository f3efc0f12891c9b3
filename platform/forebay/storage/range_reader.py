"""A read-only file over ranged reads of a storage."""

from __future__ import annotations

import io
import os
from abc import abstractmethod


class RangeReader(io.RawIOBase):
    """A seekable file of `size` bytes. Subclasses read its ranges."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

    @abstractmethod
    def read_range(self, start: int, stop: int) -> bytes | memoryview:
        """Return bytes `start` to `stop`. Raises `OSError`.

        Both are within the file.
        """

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, as in `io`."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes | memoryview:
        """Return `size` bytes in one ranged read.

        All from the position on if negative.
        """
        left = max(self._size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        if count == 0:
            return b""
        content = self.read_range(self._position, self._position + count)
        self._position += len(content)
        return content

    def readall(self) -> bytes:
        """Return all bytes from the position on.

        `io` would ask for 8 KiB at a time.
        """
        return bytes(self.read())
