"""The blocks a rank gathers from right now, as a table of addresses."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.errors import SourceChanged, TransformFailed
from forebay.kernels import gather
from forebay.loader.buffers import BufferPool
from forebay.plan.lanes import Rows
from forebay.transform.block import ArraySchema, Block

_ALIGNMENT = 64


class Resident:
    """Blocks by slot; `gather` copies any of their rows into one buffer of the pool."""

    def __init__(self, block_rows: NDArray[np.int64], pool: BufferPool) -> None:
        self._block_rows, self._pool = block_rows, pool
        self._slot_of = np.full(len(block_rows), -1, dtype=np.int64)
        self._blocks: list[Block | None] = []
        self._idle_slots: list[int] = []
        self._bases: dict[str, NDArray[np.uint64]] = {}
        self._schema: ArraySchema | None = None

    def missing(self, rows: Rows) -> list[int]:
        """Blocks of `rows` that are not here yet."""
        absent = self._slot_of[rows.block] < 0
        return np.unique(rows.block[absent]).tolist() if absent.any() else []

    def add(self, index: int, block: Block) -> None:
        """Raises `SourceChanged` or `TransformFailed` for a block that fits neither the plan nor those before it."""
        self._check(index, block)
        if not self._idle_slots:
            self._grow()
        slot = self._idle_slots.pop()
        self._slot_of[index] = slot
        self._blocks[slot] = block
        for name, array in block.arrays.items():
            self._bases[name][slot] = array.ctypes.data

    def remove(self, index: int) -> Block | None:
        """The block, which is here no more; None if it was not."""
        slot = int(self._slot_of[index])
        if slot < 0:
            return None
        self._slot_of[index] = -1
        self._idle_slots.append(slot)
        block, self._blocks[slot] = self._blocks[slot], None
        return block

    def gather(self, rows: Rows) -> tuple[dict[str, NDArray[np.generic]], int]:
        """The rows as arrays [n, ...] in one buffer, and its bytes. All blocks of `rows` must be here."""
        assert self._schema is not None, "gather follows add"
        slot, n = self._slot_of[rows.block], len(rows.row)
        places, end = [], 0
        for name, dtype, tail in self._schema:
            row_bytes = np.dtype(dtype).itemsize * int(np.prod(tail, dtype=np.int64))
            places.append((name, np.dtype(dtype), tail, row_bytes, end))
            end += -(-n * row_bytes // _ALIGNMENT) * _ALIGNMENT
        buffer = self._pool.take(end)
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, kind, tail, row_bytes, start in places:
            gather(buffer.ctypes.data + start, row_bytes, self._bases[name], slot, rows.row)
            arrays[name] = buffer[start : start + n * row_bytes].view(kind).reshape(n, *tail)
        return arrays, end

    def _check(self, index: int, block: Block) -> None:
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
            self._bases = {name: np.zeros(0, dtype=np.uint64) for name, _, _ in self._schema}
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
        self._bases = {
            name: np.resize(bases, new) if old else np.zeros(new, np.uint64) for name, bases in self._bases.items()
        }


def as_tensors(arrays: dict[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
    """The same memory as tensors."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
