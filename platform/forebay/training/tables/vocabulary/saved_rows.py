"""Rows of an open vocabulary in a checkpoint.

By shard and then by id, in parts that any world reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.tensor_collectives import TensorCollectives
from forebay.training.strategies.flat_part import FlatPart, flat_span
from forebay.training.tables.layout import NUM_SHARDS
from forebay.training.tables.vocabulary.admitted_rows import SHARED, AdmittedRows
from forebay.training.tables.vocabulary.count_sketch import CountSketch, sketch_shape
from forebay.training.tables.vocabulary.shards import mixed, shards_of

COUNTS, IDS, SEEN, SKETCH = "shard_rows", "ids", "seen", "sketch"


class SavedRows:
    """State of the shards from `first` to `stop`.

    Of `rows` and `sketch`.
    """

    def __init__(self, rows: AdmittedRows, sketch: CountSketch, shards: tuple[int, int], most_rows: int) -> None:
        self._rows, self._sketch, self._most_rows = rows, sketch, most_rows
        self._first, self._stop = shards
        self._counts: Tensor | None = None
        """Rows of each shard in the checkpoint that is being read."""

    def parts(self, tensors: TensorCollectives) -> dict[str, FlatPart]:
        """Return this rank's parts by name.

        The number of rows of each shard comes first, and is read first.

        All ranks call it alike.
        """
        rows = self._rows
        counts = tensors.all_reduce(rows.filled.clone()).cpu()
        total, begin = int(counts.sum()), int(counts[: self._first].sum())
        by_id = torch.argsort(rows.ids)
        order = by_id[torch.argsort(shards_of(mixed(rows.ids[by_id])), stable=True)]
        found = {
            COUNTS: FlatPart(shape=(NUM_SHARDS,), start=self._first, values=rows.filled[self._first : self._stop]),
            IDS: FlatPart(shape=(total,), start=begin, values=rows.ids[order]),
            SEEN: FlatPart(shape=(total,), start=begin, values=rows.seen[order]),
        }
        for name, values in rows.owned.tensors.items():
            width = int(np.prod(values.shape[1:], dtype=np.int64))
            found[name] = FlatPart(
                shape=(total, *values.shape[1:]), start=begin * width, values=values[order + 1].reshape(-1)
            )
        if len(self._sketch.counts):
            shape = sketch_shape(self._most_rows)
            found[SKETCH] = FlatPart(shape=shape, start=self._first * shape[1], values=self._sketch.counts.reshape(-1))
        return found

    def shared_row(self) -> dict[str, Tensor]:
        """Return the shared row, which every rank has."""
        return {name: values[SHARED : SHARED + 1].clone() for name, values in self._rows.owned.tensors.items()}

    def restored(self, key: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor | FlatPart:
        """Return what this rank reads of the saved tensor `key`."""
        if key == COUNTS:
            self._counts = read(((0,), shape))
            return self._counts
        begin, end = (self._first, self._stop) if key == SKETCH else self._span(self._counts, shape[0])
        values = read(((begin, *(0 for _ in shape[1:])), (end - begin, *shape[1:])))
        return FlatPart(shape=shape, start=begin * int(np.prod(shape[1:], dtype=np.int64)), values=values.reshape(-1))

    def load(self, saved: Mapping[str, Tensor | FlatPart], shared: Mapping[str, Tensor]) -> None:
        """Load a saved state. Its tensors may be whole.

        Raises `ValueError` if it does not fit.
        """
        self._require_known(saved)
        counts, rows = saved[COUNTS], self._rows
        whole = counts.values if isinstance(counts, FlatPart) else counts
        begin, end = self._span(whole, int(whole.sum()))

        def span(key: str, first: int, stop: int) -> Tensor:
            value = saved[key]
            width = int(np.prod(value.shape[1:], dtype=np.int64))
            found = flat_span(value, first * width, (stop - first) * width)
            return found.reshape(stop - first, *value.shape[1:]).to(rows.ids.device)

        none = rows.ids.new_zeros(1)
        tensors = {key: torch.cat([shared[key].to(rows.ids.device), span(key, begin, end)]) for key in shared}
        ids, seen = span(IDS, begin, end), span(SEEN, begin, end)
        rows.replace(torch.cat([none, ids]), torch.cat([none, seen]), tensors)
        if len(self._sketch.counts):
            self._sketch.counts.copy_(span(SKETCH, self._first, self._stop))

    def _span(self, counts: Tensor | None, total: int) -> tuple[int, int]:
        if counts is None:  # A checkpoint of a table that was not open: `load` refuses it.
            return 0, total
        ends = [0, *counts.cumsum(0).tolist()]
        return ends[self._first], ends[self._stop]

    def _require_known(self, saved: Mapping[str, Any]) -> None:
        if COUNTS not in saved:
            raise ValueError("the checkpoint has a table of fixed rows, and this one has admission=")
        wanted = {COUNTS, IDS, SEEN, *self._rows.owned.tensors} | ({SKETCH} if len(self._sketch.counts) else set())
        if other := sorted(saved.keys() ^ wanted):
            raise ValueError(f"the state {', '.join(other)} of an open table is on one side only")
        if SKETCH in saved and tuple(saved[SKETCH].shape) != sketch_shape(self._most_rows):
            raise ValueError(f"a sketch of {list(saved[SKETCH].shape)} counts does not fit {self._most_rows:,} rows")
