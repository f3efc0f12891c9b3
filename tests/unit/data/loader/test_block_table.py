"""The table of blocks that batches are gathered from."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.data.loader.block_table import BlockTable
from forebay.data.loader.gather_threads import GatherThreads
from forebay.data.plan.order import PositionedRows
from forebay.data.transform.block import Block
from forebay.errors import SourceChanged, TransformFailed
from forebay.runtime.memory.pool import BufferPool


def block_of(start: int, rows: int) -> Block:
    ids = np.arange(start, start + rows)
    return Block(rows, {"id": ids, "x": np.stack([ids, -ids], axis=1).astype(np.float32), "flag": ids % 2 == 0})


def resident_of(rows: list[int]) -> BlockTable:
    return BlockTable(np.array(rows), BufferPool(kept_bytes=0), GatherThreads(1))


def rows_of(block: list[int], row: list[int]) -> PositionedRows:
    return PositionedRows(np.arange(len(row)), np.array(block), np.array(row))


def test_blocks_come_and_go() -> None:
    resident = resident_of([10] * 40)
    for index in range(40):  # more than the table's first size
        resident.add(index, block_of(10 * index, 10))
    for index in range(0, 40, 2):
        resident.remove(index)
        resident.remove(index)
    some = rows_of([1, 2, 2, 4], [0, 0, 0, 0])
    assert resident.missing(some) == [2, 4] and resident.gather(some) is None
    resident.add(2, block_of(20, 10))
    gathered = resident.gather(rows_of([2, 1, 39, 2], [0, 9, 5, 3]))
    assert gathered is not None
    arrays, num_bytes = gathered
    assert arrays["id"].tolist() == [20, 19, 395, 23]
    assert arrays["x"].tolist() == [[20, -20], [19, -19], [395, -395], [23, -23]]
    assert arrays["flag"].tolist() == [True, False, False, False]
    assert num_bytes == 3 * 64
    assert all(array.ctypes.data % 64 == 0 for array in arrays.values())


def test_blocks_that_do_not_fit_are_refused() -> None:
    resident = resident_of([10, 10])
    with pytest.raises(SourceChanged, match="has 9 rows; the plan was made for 10"):
        resident.add(0, block_of(0, 9))
    resident.add(0, block_of(0, 10))
    with pytest.raises(TransformFailed, match="same names"):
        resident.add(1, Block(10, {"id": np.arange(10)}))
