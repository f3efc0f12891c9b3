"""Compiled permutations: exact literals, bijections, randomness that statistics cannot distinguish from real."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forebay.data.kernels import calls, orders
from forebay.data.kernels.calls import order_lanes
from forebay.data.kernels.kernel import Kernel
from forebay.data.plan.permute import derive, permutation

PERMUTE = Kernel(lambda: orders, "permute")


def permuted(start: int, count: int, size: int, key: int) -> NDArray[np.uint32]:
    images = np.empty(count, dtype=np.uint32)
    memory = np.empty(calls._LANE_WORDS, np.uint64)
    PERMUTE.call(start, size, np.uint64(key), count, images.ctypes.data, memory.ctypes.data)
    return images


def test_literals_pin_the_arithmetic() -> None:
    assert permuted(0, 6, 5000, derive(1)).tolist() == [1417, 1328, 2252, 3800, 1992, 1456]


@given(st.integers(1, 1024), st.integers(0, 2**64 - 1))
def test_few_numbers_are_permuted_by_sorting(size: int, key: int) -> None:
    assert permuted(0, size, size, key).tolist() == permutation(size, key).tolist()


@given(st.one_of(st.integers(1, 40), st.integers(1020, 5000)), st.integers(0, 2**64 - 1))
def test_permuted_is_a_bijection(size: int, key: int) -> None:
    assert sorted(permuted(0, size, size, key).tolist()) == list(range(size))


@given(st.integers(1, 100_000), st.data())
def test_any_index_alone_equals_all_at_once(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    assert permuted(index, 1, size, 5)[0] == permuted(0, size, size, 5)[index]


@pytest.mark.parametrize("size", [2**16, 65_000, 1100])
def test_windows_are_well_mixed(size: int) -> None:
    """Chi-square of (place, value) and of neighbouring values over a grid, summed over keys: near 1 per degree."""
    grid, keys = 16, 40
    places = np.zeros((grid, grid))
    neighbours = np.zeros((grid, grid))
    for key in range(keys):
        order = permuted(0, size, size, derive(9, key))
        places += np.histogram2d(np.arange(size), order, bins=grid, range=[[0, size]] * 2)[0]
        even = order[: size // 2 * 2]
        neighbours += np.histogram2d(even[::2], even[1::2], bins=grid, range=[[0, size]] * 2)[0]
    for counts in (places, neighbours):
        expected = counts.sum() / grid**2
        assert ((counts - expected) ** 2 / expected).sum() / (grid - 1) ** 2 < 1.6


@given(st.lists(st.integers(1, 5), min_size=1, max_size=90), st.integers(1, 200), st.integers(1, 3), st.data())
def test_rows_of_a_lane_are_those_of_its_pieces(rows: list[int], window: int, stride: int, data: st.DataObject) -> None:
    ends, blocks, shifts = np.cumsum(rows), np.arange(len(rows)) + 100, np.arange(len(rows)) * 1000
    bounds = np.array([*range(0, int(ends[-1]), window), ends[-1]])
    start = data.draw(st.integers(0, int(ends[-1]) - 1))
    stop = data.draw(st.integers(start + 1, int(ends[-1])))
    addresses = [array.ctypes.data for array in (ends, blocks, shifts, bounds)]
    lane = np.array([[*addresses, len(rows), len(bounds) - 1, 7, False]], dtype=np.uint64)
    block, row = np.full(stride * (stop - start), -1), np.full(stride * (stop - start), -1)
    order_lanes(lane, np.array([[start, stop, 0]]), stride, block, row)
    piece = np.searchsorted(ends, np.arange(start, stop), side="right")
    assert (block[::stride] == piece + 100).all()
    assert (row[::stride] == np.arange(start, stop) + 1000 * piece).all()
    assert (block == -1).sum() == (stride - 1) * (stop - start), "and nothing is written between the places"
