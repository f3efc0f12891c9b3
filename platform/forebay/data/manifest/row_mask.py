"""Bit mask of kept rows of row groups.

One bit for each row, and the number of each kept row.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_WORD = 64
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_COUNTS = _BITS.sum(axis=1).astype(np.int64)
# [byte, k]: index of the bit number k that is set, of those that are.
_PLACES = np.argsort(1 - _BITS, axis=1, kind="stable").astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMask:
    """Kept rows of the row groups of a manifest.

    `words` is uint8 [words, 8], with the lowest bit first. The rows of each row group begin on 8 bytes of their own.
    `rows` is int64 [row groups]: the rows of each row group, kept or not. Takes 2 bits a row in memory.
    """

    words: NDArray[np.uint8]
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.words.shape != (int(self._word_ends[-1]) if len(self.rows) else 0, 8):
            raise ValueError(f"a mask of {self.words.shape} words is not that of {int(self.rows.sum())} rows")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.words, self.rows)  # without what was computed from them

    @classmethod
    def of(cls, masks: Sequence[NDArray[np.bool_]]) -> RowMask:
        """Mask with one bool [rows] for each row group."""
        rows = np.array([len(mask) for mask in masks], dtype=np.int64)
        parts = [np.packbits(np.pad(mask, (0, -len(mask) % _WORD)), bitorder="little") for mask in masks]
        return cls(words=np.concatenate([np.empty(0, np.uint8), *parts]).reshape(-1, 8), rows=rows)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Kept rows per row group, int64 [row groups]."""
        return np.diff(self._ends[self._word_ends], prepend=0)

    def keeps(self, index: int) -> NDArray[np.bool_]:
        """Mask of kept rows, bool [rows].

        Of row group `index`.
        """
        stop = int(self._word_ends[index])
        start = stop - -(-int(self.rows[index]) // _WORD)
        bits = np.unpackbits(self.words[start:stop].ravel(), bitorder="little")
        return bits[: int(self.rows[index])].astype(np.bool_)

    def select(self, block: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows by their index among kept rows, int64 [n]."""
        first_word = self._word_ends[block] - (self.rows[block] + _WORD - 1) // _WORD
        wanted = self._ends[first_word] + number
        word = np.searchsorted(self._ends, wanted, side="right") - 1
        in_word = wanted - self._ends[word]
        counts = _COUNTS[self.words[word]]
        ends = np.cumsum(counts, axis=1)
        byte = (ends <= in_word[:, None]).sum(axis=1)
        each = np.arange(len(word))
        bit = _PLACES[self.words[word, byte], in_word - (ends - counts)[each, byte]]
        found: NDArray[np.int64] = (word - first_word) * _WORD + byte * 8 + bit
        return found

    def take(self, indices: NDArray[np.int64]) -> RowMask:
        """Mask of some row groups, in the order of `indices`."""
        return RowMask.of([self.keeps(index) for index in indices.tolist()])

    def to_text(self) -> str:
        """Bits as text for a JSON file."""
        return base64.b64encode(zlib.compress(self.words.tobytes())).decode()

    @classmethod
    def from_text(cls, text: str, rows: NDArray[np.int64]) -> RowMask:
        """Mask of row groups with `rows` rows.

        Raises `ValueError` if `text` is not such a mask.
        """
        words = -(-np.asarray(rows, dtype=np.int64) // _WORD)
        size = int(words.sum()) * 8
        reader = zlib.decompressobj()
        try:
            content = reader.decompress(base64.b64decode(text, validate=True), size + 1)
        except zlib.error as error:
            raise ValueError(f"its mask cannot be read: {error}") from error
        if len(content) != size:
            raise ValueError("its mask is of other rows")
        mask = cls(words=np.frombuffer(content, dtype=np.uint8).reshape(-1, 8), rows=np.asarray(rows, dtype=np.int64))
        if int(mask.counts.sum()) != sum(int(mask.keeps(index).sum()) for index in range(len(rows))):
            raise ValueError("its mask keeps rows that do not exist")
        return mask

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the bits."""
        return hashlib.sha256(self.words.tobytes()).hexdigest()

    @cached_property
    def _word_ends(self) -> NDArray[np.int64]:
        return np.cumsum(-(-self.rows // _WORD))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Kept rows before each word, int64 [words + 1].

        A word has 64 rows. The last number counts all kept rows.
        """
        counts = np.zeros(len(self.words), dtype=np.int64)
        for byte in range(8):
            counts += _COUNTS[self.words[:, byte]]
        return np.concatenate([[0], np.cumsum(counts)])


def _rebuild(words: NDArray[np.uint8], rows: NDArray[np.int64]) -> RowMask:
    return RowMask(words=words, rows=rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptRows:
    """Rows of a manifest that belong to the dataset.

    With the reasons why others do not.

    Attributes:
        mask: Rows that are kept.
        where: Text of the filter. Empty without one.
        deleted_rows: Number of rows that the table has deleted, over all row groups that were scanned.
        filtered_rows: Number of live rows that `where` left out, also of row groups that it left out as a whole.
        skipped_rows: Number of rows that a skip list left out, and neither a deletion nor the filter.
        rules: Names of the rules of `keep_rows`, with the first digits of their fingerprints, in their order.
        rejected_rows: Number of rows that these rules left out, of those that were there before.
    """

    mask: RowMask
    where: str = ""
    deleted_rows: int = 0
    filtered_rows: int = 0
    skipped_rows: int = 0
    rules: tuple[str, ...] = ()
    rejected_rows: int = 0
