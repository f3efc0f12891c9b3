"""The compiled loops over lists, compared with Python's lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.kernels.calls import gather_lists, locate_lists

BLOCKS = st.lists(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=4), min_size=1, max_size=4)


@given(BLOCKS, st.sampled_from([np.uint8, np.float32, np.int64]), st.data())
def test_lists_of_any_block_follow_each_other(
    blocks: list[list[list[int]]], dtype: type[np.number], data: st.DataObject
) -> None:
    pairs = [(block, row) for block, lists in enumerate(blocks) for row in range(len(lists))]
    picks = data.draw(st.lists(st.sampled_from(pairs), max_size=30))
    values = [np.array(sum(lists, []), dtype) for lists in blocks]
    offsets = [np.cumsum([0, *map(len, lists)]).astype(np.int32) for lists in blocks]
    # Slots in another order than blocks, and another array's addresses between.
    bases = np.array(
        [[each.ctypes.data for each in arrays[::-1]] for arrays in (values, offsets, offsets)], dtype=np.uint64
    )
    slot_of = np.arange(len(blocks))[::-1].copy()
    block, row = np.array(picks, np.int64).reshape(-1, 2).T.copy()
    item_bytes = np.dtype(dtype).itemsize
    lists = np.empty((1, 2, len(picks)), np.int64)
    assert locate_lists(np.array([[0, 2, item_bytes]]), bases, slot_of, block, row, lists) == -1
    expected = [blocks[block][row] for block, row in picks]
    assert lists[0, 1].tolist() == [len(each) for each in expected]
    out = np.full(sum(map(len, expected)) + 2, 7, dtype)
    gather_lists(out.ctypes.data, np.array([[item_bytes, item_bytes]]), lists)
    assert out.tolist() == [7, *sum(expected, []), 7], "nothing is written before or behind them"


@pytest.mark.parametrize("block", [[0, 1], [1, 0]])
def test_a_block_without_a_slot_is_named(block: list[int]) -> None:
    lists = np.zeros((1, 2, 2), np.int64)
    call = (np.array([[0, 0, 8]]), np.zeros((1, 1), np.uint64), np.array([0, -1]))
    assert locate_lists(*call, np.array(block)[:1] * 0 + 1, np.array([0]), lists) == 1
    assert not lists.any()
