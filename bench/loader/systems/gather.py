"""Forebay's gather kernel on arrays in memory, with all rows planned beforehand: the limit of a cached epoch.

No thread, no cache, no file. Each batch is copied into one of a few buffers that are reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import forebay as fb
from bench.loader.features import pack
from bench.loader.setting import LoaderFacts, LoaderSetting
from forebay.data.kernels import loops
from forebay.data.kernels.kernel import Kernel
from forebay.data.manifest.manifest import RowGroup

_NUM_BUFFERS = 4
_GATHER = Kernel(lambda: loops, "gather")


class BareGather:
    """Batches of planned rows from memory."""

    facts = LoaderFacts(
        version="forebay.data.kernels.loops.gather",
        shuffled="yes: the order of Forebay's plan",
        packed="yes",
        deterministic="yes",
        note="a limit, not a loader: all data in memory, all rows planned beforehand, gathered in the trainer's thread",
    )

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        manifest = fb.scan(str(setting.data))
        self._plan = fb.build_plan(manifest, seed=setting.seed)
        self._blocks = [_read(row_group, setting.kind) for row_group in manifest]
        arrays = self._blocks[0]
        self._bases = {
            name: np.array([block[name].ctypes.data for block in self._blocks], dtype=np.uint64) for name in arrays
        }
        self._buffers = [
            {name: np.empty((setting.batch, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
            for _ in range(_NUM_BUFFERS)
        ]
        self._planned: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def prepare(self) -> None:
        """Plan the epochs that will be requested."""
        for number in range(3):  # Later epochs reuse these three.
            self._planned[number] = list(self._rows(number))

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        for place, (block, row) in enumerate(self._planned[number % len(self._planned)]):
            buffers = self._buffers[place % _NUM_BUFFERS]
            for name, buffer in buffers.items():
                _GATHER.call(buffer.ctypes.data, buffer.strides[0], self._bases[name], block, row)
            yield {name: buffer[: len(row)] for name, buffer in buffers.items()}

    def epochs(self, first: int, count: int) -> Iterator[Mapping[str, Any]]:
        """Several epochs, one after the other."""
        for number in range(first, first + count):
            yield from self.epoch(number)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _rows(self, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        position = 0
        while size := self._plan.batch_size(position, self._setting.batch) if position < self._plan.num_rows else 0:
            rows = self._plan.batch(number, position, self._setting.batch)
            yield np.ascontiguousarray(rows.block), np.ascontiguousarray(rows.row)
            position += size


def _read(row_group: RowGroup, kind: str) -> dict[str, np.ndarray]:
    table = pq.ParquetFile(row_group.uri).read_row_group(row_group.index)
    return {name: np.array(array, order="C") for name, array in pack(table, kind).items()}


open_system = BareGather
