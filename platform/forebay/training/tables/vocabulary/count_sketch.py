"""Approximate counts of ids without a row.

In a memory of fixed size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forebay.training.tables.layout import NUM_SHARDS
from forebay.training.tables.vocabulary.admission import MOST_COUNT
from forebay.training.tables.vocabulary.shards import above_shard, mixed, shards_of

_DEPTH = 4
_LEAST_WIDTH = 256
_SECOND = 0x5851F42D4C957F2D


class CountSketch:
    """Count-min sketches of the shards from `first` to `stop`.

    Cormode and Muthukrishnan 2005.

    A count is never too small, up to 255, and does not depend on the order in which ids were added, nor on the shards
    of other ranks. `counts` is uint8 [shards, numbers of a shard].
    """

    def __init__(self, first: int, stop: int, rows: int, device: torch.device) -> None:
        self._first = first
        self._width = width_of(rows)
        self.counts = torch.zeros(stop - first, _DEPTH * self._width, dtype=torch.uint8, device=device)

    def add(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Add `counts` [n] of ids [n], each of them once.

        Return all their counts so far, up to 255.
        """
        cells = self._cells(ids)
        flat = self.counts.view(-1)
        touched, inverse = torch.unique(cells, return_inverse=True)
        sums = flat[touched].long().index_add_(0, inverse.reshape(-1), counts.repeat(_DEPTH))
        flat[touched] = sums.clamp_(max=MOST_COUNT).to(torch.uint8)
        return sums[inverse].amin(0)

    def _cells(self, ids: Tensor) -> Tensor:
        words = mixed(ids)
        start = (shards_of(words) - self._first) * (_DEPTH * self._width)
        step = mixed(words ^ _SECOND) | 1
        lines = [
            start + depth * self._width + (above_shard(words + depth * step) & (self._width - 1))
            for depth in range(_DEPTH)
        ]
        return torch.stack(lines)


def width_of(rows: int) -> int:
    """Return the cells per line of a shard's sketch.

    A power of 2, for a table of at most `rows` rows.
    """
    return max(_LEAST_WIDTH, 1 << (rows // NUM_SHARDS - 1).bit_length())


def sketch_shape(rows: int) -> tuple[int, int]:
    """Return the shape of the counts of all shards."""
    return NUM_SHARDS, _DEPTH * width_of(rows)
