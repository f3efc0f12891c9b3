"""Table of addresses of the blocks that a rank gathers from at this moment."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.errors import SourceChanged, TransformFailed
from forebay.kernels.calls import gather_arrays
from forebay.loader.buffers import BufferPool
from forebay.plan.order import PositionedRows
from forebay.transform.block import ArraySchema, Block

_ALIGNMENT = 64


class BlockTable:
    """Blocks by slot. `gather` copies any of their rows into one buffer of the pool."""

    def __init__(self, block_rows: NDArray[np.int64], pool: BufferPool) -> None:
        self._block_rows, self._pool = block_rows, pool
        self._slot_of = np.full(len(block_rows), -1, dtype=np.int64)
        self._blocks: list[Block | None] = []
        self._idle_slots: list[int] = []
        # One row per array, one column per slot.
        self._bases = np.zeros((0, 0), dtype=np.uint64)
        self._schema: ArraySchema | None = None
        self._row_bytes: list[int] = []

    def missing(self, rows: PositionedRows) -> list[int]:
        """Numbers of the blocks of `rows` that are not in the table."""
        absent = self._slot_of[rows.block] < 0
        return np.unique(rows.block[absent]).tolist() if absent.any() else []

    def add(self, index: int, block: Block) -> None:
        """Add a block. Raises `SourceChanged` or `TransformFailed` if it does not fit the plan or earlier blocks."""
        self._validate_block(index, block)
        if not self._idle_slots:
            self._grow()
        slot = self._idle_slots.pop()
        self._slot_of[index] = slot
        self._blocks[slot] = block
        self._bases[:, slot] = [array.ctypes.data for array in block.arrays.values()]

    def remove(self, index: int) -> Block | None:
        """Remove and return a block, or None if it is not in the table."""
        slot = int(self._slot_of[index])
        if slot < 0:
            return None
        self._slot_of[index] = -1
        self._idle_slots.append(slot)
        block, self._blocks[slot] = self._blocks[slot], None
        return block

    def gather(self, rows: PositionedRows) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        """Copy rows into one buffer. Returns the arrays [n, ...] and their bytes, or None if a block is `missing`."""
        if self._schema is None:
            return None
        n, end = len(rows.row), 0
        places = np.empty((len(self._schema), 2), dtype=np.int64)
        for place, row_bytes in zip(places, self._row_bytes, strict=True):
            place[:] = row_bytes, end
            end += -(-n * row_bytes // _ALIGNMENT) * _ALIGNMENT
        buffer = self._pool.lease(end)
        if gather_arrays(buffer.ctypes.data, places, self._bases, self._slot_of, rows.block, rows.row) >= 0:
            return None
        arrays: dict[str, NDArray[np.generic]] = {}
        for (name, dtype, tail), (row_bytes, start) in zip(self._schema, places.tolist(), strict=True):
            arrays[name] = buffer[start : start + n * row_bytes].view(dtype).reshape(n, *tail)
        return arrays, end

    def _validate_block(self, index: int, block: Block) -> None:
        expected = int(self._block_rows[index])
        if block.rows != expected:
            raise SourceChanged(
                f"Row group {index} has {block.rows} rows; the plan was made for {expected}. Scan the data again.",
                row_group=index,
                rows=block.rows,
                expected=expected,
            )
        if self._schema is None:
            self._schema = block.schema
            self._row_bytes = [np.dtype(dtype).itemsize * math.prod(tail) for _, dtype, tail in self._schema]
            self._bases = np.zeros((len(self._schema), len(self._blocks)), dtype=np.uint64)
        elif block.schema != self._schema:
            raise TransformFailed(
                f"Row group {index} became {block.schema}; earlier ones became {self._schema}. A transform must give "
                "every row group the same names, dtypes and trailing shapes: cast in the function.",
                row_group=index,
            )

    def _grow(self) -> None:
        old, new = len(self._blocks), max(2 * len(self._blocks), 16)
        self._blocks += [None] * (new - old)
        self._idle_slots += range(old, new)
        self._bases = np.pad(self._bases, ((0, 0), (0, new - old)))


def as_tensors(arrays: dict[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
    """Tensors on the same memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
