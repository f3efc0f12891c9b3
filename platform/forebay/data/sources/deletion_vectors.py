"""Deletion vectors of Delta Lake and Iceberg.

Both formats keep a portable Roaring bitmap of 64 bits: https://github.com/RoaringBitmap/RoaringFormatSpec. Thirty bytes
of it may name four billion rows. So rows are spans until the number of rows of their file is known.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 28
"""Limit for one deletion vector. That of two billion scattered rows has as many bytes."""
FRAME_BYTES = 8
"""Bytes of the length before a vector, and of the checksum behind it."""
_MAGIC = 1681511377
_PLAIN, _WITH_RUNS = 12346, 12347
_LEAST_WITH_OFFSETS = 4
_MOST_IN_ARRAY = 4096
_CONTAINER = 1 << 16
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: value for value, letter in enumerate(_Z85)}


def framed_spans(content: bytes) -> NDArray[np.int64]:
    """Spans of deleted rows of a vector between its length and its checksum.

    So a file of either format holds a vector. Returns int64 [n, 2], as `row_spans`. Raises `ValueError`.
    """
    size = int.from_bytes(content[:4])
    vector = content[4 : 4 + size]
    if len(content) != size + FRAME_BYTES:
        raise ValueError(f"it states {size} bytes, and {len(content) - FRAME_BYTES} are there")
    if zlib.crc32(vector) != int.from_bytes(content[-4:]):
        raise ValueError("its checksum is wrong")
    return row_spans(vector)


def row_spans(vector: bytes) -> NDArray[np.int64]:
    """Spans of the rows in a vector, int64 [n, 2].

    Each begins at its first row and stops before its second number. They are sorted and do not overlap. Takes at most
    64 times the memory of the vector.

    Raises `ValueError`, unless the vector is whole and nothing follows.
    """
    reader = _BitmapReader(vector)
    magic, count = reader.numbers("<IQ")
    if magic != _MAGIC:
        raise ValueError(f"it begins with the number {magic} instead of {_MAGIC}")
    found, last = [np.empty((0, 2), np.int64)], -1
    for _ in range(count):
        (key,) = reader.numbers("<I")
        if not last < key < 1 << 31:
            raise ValueError("its keys are not sorted, or too large")
        last = key
        found += [spans + (key << 32) for spans in _bitmap(reader)]
    reader.require_end()
    return np.concatenate(found)


def num_rows(spans: NDArray[np.int64]) -> int:
    """Number of rows in spans that do not overlap."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def z85(text: str) -> bytes:
    """Bytes that a text in Z85 stands for. Raises `ValueError`."""
    if len(text) % 5 or not _DIGITS.keys() >= set(text):
        raise ValueError("it is not encoded as Z85")
    digits = np.array([_DIGITS[letter] for letter in text], np.int64).reshape(-1, 5)
    values = digits @ 85 ** np.arange(4, -1, -1)
    if len(values) and values.max() >= 1 << 32:
        raise ValueError("it is not encoded as Z85")
    return values.astype(">u4").tobytes()


class _BitmapReader:
    """Reads a vector from its beginning, and nothing behind its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, size: int) -> bytes:
        found = self._content[self._at : self._at + size]
        if len(found) < size:
            raise ValueError("it ends too early")
        self._at += size
        return found

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def array(self, *shape: int) -> NDArray[np.int64]:
        """Read unsigned numbers of 16 bits."""
        size = int(np.prod(shape))
        return np.frombuffer(self.take(2 * size), "<u2").astype(np.int64).reshape(shape)

    def require_end(self) -> None:
        if self._at < len(self._content):
            raise ValueError(f"{len(self._content) - self._at} bytes follow its end")


def _bitmap(reader: _BitmapReader) -> Iterator[NDArray[np.int64]]:
    """Spans of each container of a bitmap of 32 bits."""
    (cookie,) = reader.numbers("<I")
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        are_runs = np.unpackbits(np.frombuffer(reader.take(-(-count // 8)), np.uint8), bitorder="little")[:count]
    elif cookie == _PLAIN:
        (count,) = reader.numbers("<I")
        are_runs = np.zeros(min(count, _CONTAINER), np.uint8)
    else:
        raise ValueError(f"a bitmap begins with the number {cookie}")
    if count > _CONTAINER:
        raise ValueError(f"a bitmap states {count} containers")
    keys, sizes = reader.array(count, 2).T
    if (np.diff(keys) <= 0).any():
        raise ValueError("its keys are not sorted")
    if cookie == _PLAIN or count >= _LEAST_WITH_OFFSETS:
        reader.take(4 * count)  # where each container begins: they follow one another
    for key, rows, is_run in zip(keys.tolist(), (sizes + 1).tolist(), are_runs.tolist(), strict=True):
        spans = _container(reader, rows, is_run=bool(is_run))
        if num_rows(spans) != rows or (spans[1:, 0] < spans[:-1, 1]).any() or spans.max() > _CONTAINER:
            raise ValueError("the rows of a container are not sorted, or not as many as it states")
        yield spans + (key << 16)


def _container(reader: _BitmapReader, rows: int, *, is_run: bool) -> NDArray[np.int64]:
    if is_run:
        (count,) = reader.numbers("<H")
        starts, lengths = reader.array(count, 2).T
        return np.stack([starts, starts + lengths + 1], axis=1) if count else np.zeros((1, 2), np.int64)
    if rows > _MOST_IN_ARRAY:
        bits = np.unpackbits(np.frombuffer(reader.take(_CONTAINER // 8), np.uint8), bitorder="little")
        edges = np.flatnonzero(np.diff(bits, prepend=np.uint8(0), append=np.uint8(0)))
        return edges.reshape(-1, 2)
    values = reader.array(rows)
    firsts = np.flatnonzero(np.diff(values, prepend=-2) != 1)
    return np.stack([values[firsts], values[[*(firsts[1:] - 1), -1]] + 1], axis=1)
