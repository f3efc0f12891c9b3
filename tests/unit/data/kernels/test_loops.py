"""The compiled loops, compared with the same computation in NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.kernels import loops
from forebay.data.kernels.calls import gather_arrays, pack_columns, pad
from forebay.data.kernels.kernel import Kernel

GATHER = Kernel(lambda: loops, "gather")


@given(st.integers(1, 70), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_any_row_size_from_any_block(row_bytes: int, block_rows: list[int], data: st.DataObject) -> None:
    rng = np.random.default_rng(row_bytes)
    blocks = [rng.integers(256, size=(rows, row_bytes)).astype(np.uint8) for rows in block_rows]
    picks = data.draw(
        st.lists(
            st.integers(0, len(blocks) - 1).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, block_rows[b] - 1)))
        )
    )
    target = np.full((len(picks) + 1, row_bytes), 7, dtype=np.uint8)
    bases = np.array([block.ctypes.data for block in blocks], dtype=np.uint64)
    slot, row = (np.array(column, dtype=np.int64) for column in (zip(*picks, strict=True) if picks else ([], [])))
    GATHER.call(target.ctypes.data, row_bytes, bases, slot, row)
    for number, (block, index) in enumerate(picks):
        assert (target[number] == blocks[block][index]).all()
    assert (target[-1] == 7).all(), "nothing is written past the last row"


@given(st.integers(1, 600), st.integers(1, 27), st.sampled_from([np.int32, np.int64]))
def test_pack_columns_interleaves_columns(rows: int, width: int, dtype: type[np.signedinteger]) -> None:
    columns = np.random.default_rng(rows).integers(-(2**31), 2**31, size=(width, rows)).astype(dtype)
    packed = np.full(rows * width + 1, 7, dtype=dtype)
    pack_columns(np.array([column.ctypes.data for column in columns], dtype=np.uint64), rows, packed[:-1])
    assert (packed[:-1].reshape(rows, width) == columns.T).all() and packed[-1] == 7


@given(st.lists(st.integers(0, 5), max_size=20), st.sampled_from([np.int8, np.float32, np.int64]))
def test_pad_lays_lists_into_rows_and_zeros_behind_them(sizes: list[int], dtype: type[np.number]) -> None:
    values, lengths = np.arange(100).astype(dtype), np.array(sizes, dtype=np.int32)
    starts = np.arange(len(sizes), dtype=np.int64)[::-1] * 3
    out = np.full((len(sizes) + 1, 5), 7, dtype=dtype)
    pad(out.ctypes.data, out.strides[0], values.ctypes.data, out.itemsize, starts, lengths)
    for found, start, size in zip(out, starts, sizes, strict=False):
        assert found.tolist() == [*values[start : start + size], *[0] * (5 - size)]
    assert (out[-1] == 7).all(), "nothing is written past the last row"


def test_gather_arrays_copies_all_arrays_or_names_a_block_that_is_missing() -> None:
    ids = [np.arange(start, start + 4) for start in (0, 100)]
    pairs = [np.stack([block, -block], axis=1).astype(np.float32) for block in ids]
    bases = np.array([[array.ctypes.data for array in arrays] for arrays in (ids, pairs)], dtype=np.uint64)
    slot_of, out = np.array([1, -1, 0]), np.full(3 * 8 * 2, 7, dtype=np.uint8)
    places, row = np.array([[8, 0], [8, 24]]), np.array([0, 3, 1])
    call = (out.ctypes.data, places, bases, slot_of)
    assert gather_arrays(*call, np.array([2, 1, 0]), row) == 1
    assert (out == 7).all(), "then nothing is copied"
    assert gather_arrays(*call, np.array([2, 0, 2]), row) == -1
    assert out[:24].view(np.int64).tolist() == [0, 103, 1]
    assert out[24:].view(np.float32).tolist() == [0, 0, 103, -103, 1, -1]
