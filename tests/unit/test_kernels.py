"""The compiled loops, against the same thing said in NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels import gather, locate, pack_words, walk


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
    gather(target.ctypes.data, row_bytes, bases, slot, row)
    for number, (block, index) in enumerate(picks):
        assert (target[number] == blocks[block][index]).all()
    assert (target[-1] == 7).all(), "nothing is written past the last row"


@given(st.integers(2, 40), st.integers(0, 10**6))
def test_walk_is_a_permutation_of_what_lies_below_its_size(size: int, key: int) -> None:
    bits = (size - 1).bit_length()
    keys = np.random.default_rng(key).integers(2**63, size=6).astype(np.uint64)
    words = np.arange(size, dtype=np.int64)
    walk(words, bits, size, keys)
    assert sorted(words.tolist()) == list(range(size))
    alone = np.array([size - 1], dtype=np.int64)
    walk(alone, bits, size, keys)
    assert alone[0] == words[-1], "each place is sent on its own"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.data())
def test_locate_finds_the_piece_of_each_place(rows: list[int], data: st.DataObject) -> None:
    ends = np.cumsum(rows)
    line = np.array(data.draw(st.lists(st.integers(0, int(ends[-1]) - 1), max_size=50)), dtype=np.int64)
    blocks, shifts = np.arange(len(rows)) + 100, np.arange(len(rows)) * 1000
    block, row = np.full(3 * len(line) + 1, -1), np.full(2 * len(line) + 1, -1)
    locate(line, ends, blocks, shifts, block[: 3 * len(line) : 3], row[: 2 * len(line) : 2])
    piece = np.searchsorted(ends, line, side="right")
    assert (block[: 3 * len(line) : 3] == piece + 100).all() and (row[: 2 * len(line) : 2] == line + 1000 * piece).all()
    assert (block == -1).sum() == 2 * len(line) + 1, "and nothing is written between the places"


@given(st.integers(1, 600), st.integers(1, 27))
def test_pack_words_interleaves_columns(rows: int, width: int) -> None:
    columns = np.random.default_rng(rows).integers(-(2**31), 2**31, size=(width, rows)).astype(np.int32)
    packed = np.full(rows * width + 1, 7, dtype=np.int32)
    pack_words(np.array([column.ctypes.data for column in columns], dtype=np.uint64), rows, packed[:-1])
    assert (packed[:-1].reshape(rows, width) == columns.T).all() and packed[-1] == 7
