"""Table of the blocks that a rank gathers from."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.data.kernels.calls import locate_lists
from forebay.data.loader.gather_threads import GatherThreads
from forebay.data.plan.order import PositionedRows
from forebay.data.transform.block import ArraySchema, Block
from forebay.data.transform.features.ragged import LIST_OFFSETS, LIST_VALUES
from forebay.errors import SourceChanged, TransformFailed
from forebay.runtime.memory.pool import BufferPool

_ALIGNMENT = 64


class BlockTable:
    """Blocks by slot.

    `gather` copies any of their rows into one buffer of the pool.
    """

    def __init__(self, block_rows: NDArray[np.int64], pool: BufferPool, threads: GatherThreads) -> None:
        self._block_rows, self._pool, self._threads = block_rows, pool, threads
        self._slot_of = np.full(len(block_rows), -1, dtype=np.int64)
        self._blocks: list[Block | None] = []
        self._idle_slots: list[int] = []
        # One row per array, one column per slot.
        self._bases = np.zeros((0, 0), dtype=np.uint64)
        self._schema: ArraySchema | None = None
        self._plain: ArraySchema = ()
        self.row_bytes: list[int] = []
        """Bytes of a row of each array but lists, known from the first block on."""
        self._names: tuple[str, ...] = ()
        self._list_dtypes: dict[str, str] = {}
        self._kept_layout: tuple[int, NDArray[np.int64], int] | None = None
        # Rows of `_bases` of the values and of the offsets of each, and bytes of a value.
        self._list_layout = np.zeros((0, 3), dtype=np.int64)

    @property
    def lists(self) -> tuple[str, ...]:
        """Names of a batch's list arrays without padding.

        Known from the first block on.
        """
        return tuple(self._list_dtypes)

    def missing(self, rows: PositionedRows) -> list[int]:
        """Numbers of missing blocks of `rows`."""
        absent = self._slot_of[rows.block] < 0
        return np.unique(rows.block[absent]).tolist() if absent.any() else []

    def add(self, index: int, block: Block) -> None:
        """Add a block.

        Raises `SourceChanged` or `TransformFailed` if it does not fit the plan or earlier blocks.
        """
        self._validate_block(index, block)
        if not self._idle_slots:
            self._grow()
        slot = self._idle_slots.pop()
        self._slot_of[index] = slot
        self._blocks[slot] = block
        self._bases[:, slot] = [block.arrays[name].ctypes.data for name in self._base_names()]

    def remove(self, index: int) -> Block | None:
        """Remove and return a block, if present.

        Else None.
        """
        slot = int(self._slot_of[index])
        if slot < 0:
            return None
        self._slot_of[index] = -1
        self._idle_slots.append(slot)
        block, self._blocks[slot] = self._blocks[slot], None
        return block

    def gather(self, rows: PositionedRows) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        """Copy rows into one buffer.

        Returns the arrays and their bytes, or None if a block is `missing`.

        Arrays have shape [n, ...]. The values of `lists` have shape [total], with their lengths, int32 [n].
        """
        if self._schema is None:
            return None
        n = len(rows.row)
        layout, end = self._layout_of(n)
        if self.lists:
            return self._gather_with_lists(rows, layout, end)
        buffer = self._pool.lease(end)
        if self._threads.gather_arrays(buffer, layout, self._bases, self._slot_of, rows) >= 0:
            return None
        return self._plain_arrays(buffer, n, layout), end

    def _gather_with_lists(
        self, rows: PositionedRows, layout: NDArray[np.int64], plain_bytes: int
    ) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        n = len(rows.row)
        lists = np.empty((len(self.lists), 2, n), dtype=np.int64)  # address and length of each
        if locate_lists(self._list_layout, self._bases, self._slot_of, rows.block, rows.row, lists) >= 0:
            return None
        value_bytes = self._list_layout[:, 2]
        sizes = (lists[:, 1].sum(axis=1) * value_bytes).tolist() + [4 * n] * len(self.lists)
        starts, end = _starts_of(sizes, plain_bytes)
        buffer = self._pool.lease(end)
        if self._threads.gather_arrays(buffer, layout, self._bases, self._slot_of, rows) >= 0:
            return None
        arrays = self._plain_arrays(buffer, n, layout)
        self._threads.gather_lists(buffer, _pairs(value_bytes, starts[: len(self.lists)]), lists)
        parts = [buffer[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        for k, (name, dtype) in enumerate(self._list_dtypes.items()):
            arrays[name] = parts[k].view(dtype)
            lengths = parts[len(self.lists) + k].view(np.int32)
            lengths[:] = lists[k, 1]
            arrays[f"{name}_lengths"] = lengths
        return {name: arrays[name] for name in map(_batch_name, self._names)}, end

    def _layout_of(self, n: int) -> tuple[NDArray[np.int64], int]:
        """Layout of the plain arrays of `n` rows.

        Bytes of a row and start of each array, and the bytes of all. Kept: most batches are equal in size.
        """
        if self._kept_layout is None or self._kept_layout[0] != n:
            starts, end = _starts_of(n * row_bytes for row_bytes in self.row_bytes)
            self._kept_layout = n, _pairs(self.row_bytes, starts), end
        return self._kept_layout[1:]

    def _plain_arrays(
        self, buffer: NDArray[np.uint8], n: int, layout: NDArray[np.int64]
    ) -> dict[str, NDArray[np.generic]]:
        return {
            name: buffer[start : start + n * row_bytes].view(dtype).reshape(n, *tail)
            for (name, dtype, tail), (row_bytes, start) in zip(self._plain, layout.tolist(), strict=True)
        }

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
            self._set_schema(block.schema)
        elif block.schema != self._schema:
            raise TransformFailed(
                f"Row group {index} became {block.schema}; earlier ones became {self._schema}. A transform must give "
                "every row group the same names, dtypes and trailing shapes: cast in the function.",
                row_group=index,
            )

    def _set_schema(self, schema: ArraySchema) -> None:
        self._schema, self._names = schema, tuple(name for name, _, _ in schema)
        self._plain = tuple(each for each in schema if not each[0].startswith((LIST_VALUES, LIST_OFFSETS)))
        self.row_bytes = [np.dtype(dtype).itemsize * math.prod(tail) for _, dtype, tail in self._plain]
        self._list_dtypes = {
            name.removeprefix(LIST_VALUES): dtype for name, dtype, _ in schema if name.startswith(LIST_VALUES)
        }
        layout = [
            (len(self._plain) + k, len(self._plain) + len(self.lists) + k, np.dtype(dtype).itemsize)
            for k, dtype in enumerate(self._list_dtypes.values())
        ]
        self._list_layout = np.array(layout, dtype=np.int64).reshape(-1, 3)
        self._bases = np.zeros((len(schema), len(self._blocks)), dtype=np.uint64)

    def _base_names(self) -> list[str]:
        """Array of a block of each row of `_bases`.

        List arrays come last: `gather_arrays` takes the first ones.
        """
        lists = [f"{prefix}{name}" for prefix in (LIST_VALUES, LIST_OFFSETS) for name in self.lists]
        return [name for name, _, _ in self._plain] + lists

    def _grow(self) -> None:
        old, new = len(self._blocks), max(2 * len(self._blocks), 16)
        self._blocks += [None] * (new - old)
        self._idle_slots += range(old, new)
        self._bases = np.pad(self._bases, ((0, 0), (0, new - old)))


def _starts_of(sizes: Iterable[int], end: int = 0) -> tuple[list[int], int]:
    """Start of each array in a buffer, and its bytes.

    The arrays come after the first `end` bytes.
    """
    starts = []
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, end


def _pairs(item_bytes: Iterable[int], starts: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(zip(item_bytes, starts, strict=True)), dtype=np.int64).reshape(-1, 2)


def _batch_name(name: str) -> str:
    """Name in a batch of an array of a block.

    >>> [_batch_name(name) for name in ("id", "@lists.values.tags", "@lists.offsets.tags")]
    ['id', 'tags', 'tags_lengths']
    """
    if name.startswith(LIST_OFFSETS):
        return f"{name.removeprefix(LIST_OFFSETS)}_lengths"
    return name.removeprefix(LIST_VALUES)


def as_tensors(arrays: dict[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
    """Tensors on the same memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
