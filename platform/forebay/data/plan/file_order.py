"""Order of the first epoch over a stream: files in the order in which they are finished, shuffled within each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from forebay.data.manifest.streamed import StreamedManifest
from forebay.data.plan.lanes import LaneRows
from forebay.data.plan.order import BlockSpan
from forebay.data.plan.permute import Ints, derive, permutation

_FILES = 8  # Continues the uses of keys in plan/row_sampling.py.


class FileOrder:
    """Rows of all files, one file after the other. Position `p` is one row of the file that has row `p`.

    So a position needs only the files up to its own, and a file is needed only by the positions of its own rows.
    """

    def __init__(self, manifest: StreamedManifest, *, seed: int, shuffle: bool) -> None:
        self._seed, self._shuffle = seed, shuffle
        self._block_ends = np.cumsum(manifest.rows)
        is_last = np.flatnonzero(np.diff(manifest.file_of, append=-1))
        self._file_ends = self._block_ends[is_last]
        self._file_of = manifest.file_of
        self._file_permutation = lru_cache(maxsize=4)(self._permute_file)

    def rows(self, positions: Ints) -> LaneRows:
        """Rows at ascending `positions`."""
        row = positions
        if self._shuffle and len(positions):
            file = np.searchsorted(self._file_ends, positions, side="right")
            row = np.empty_like(positions)
            for each in range(int(file[0]), int(file[-1]) + 1):
                start, places = self._first_row(each), file == each
                row[places] = start + self._file_permutation(each)[positions[places] - start]
        block = np.searchsorted(self._block_ends, row, side="right")
        return LaneRows(block, row - self._block_ends[block] + self._rows_of(block))

    def block_spans(self, position: int) -> Iterator[BlockSpan]:
        """Uses of blocks from `position` on: each block from the first to the last position of its file."""
        first = int(np.searchsorted(self._file_ends, position, side="right"))
        for file in range(first, len(self._file_ends)):
            for block in np.flatnonzero(self._file_of == file).tolist():
                yield BlockSpan(need=self._first_row(file), release=int(self._file_ends[file]), block=block)

    def _permute_file(self, file: int) -> Ints:
        size = int(self._file_ends[file]) - self._first_row(file)
        return permutation(size, derive(_FILES, self._seed, file))

    def _first_row(self, file: int) -> int:
        return int(self._file_ends[file - 1]) if file else 0

    def _rows_of(self, block: Ints) -> Ints:
        return np.diff(self._block_ends, prepend=0)[block]
