"""Permutations: exact literals, bijections, and randomness that statistics cannot distinguish from real."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.plan.permute import derive, permutation, permuted


def test_literals_pin_the_arithmetic() -> None:
    assert derive(7, 0, 3) == 1846129603375045472
    assert permutation(8, derive(1)).tolist() == [3, 5, 1, 7, 6, 4, 0, 2]
    assert permuted(np.arange(6), 5000, derive(1)).tolist() == [1417, 1328, 2252, 3800, 1992, 1456]


@given(st.integers(0, 5000), st.integers(0, 2**64 - 1))
def test_permutation_is_one(size: int, key: int) -> None:
    assert sorted(permutation(size, key).tolist()) == list(range(size))


@given(st.one_of(st.integers(1, 40), st.integers(1020, 5000)), st.integers(0, 2**64 - 1))
def test_permuted_is_a_bijection(size: int, key: int) -> None:
    assert sorted(permuted(np.arange(size), size, key).tolist()) == list(range(size))


@given(st.integers(1, 100_000), st.data())
def test_any_index_alone_equals_all_at_once(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    assert permuted(np.array([index]), size, 5)[0] == permuted(np.arange(size), size, 5)[index]


def test_keys_differ_in_every_word_and_place() -> None:
    words = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 0, 0), (2**64 - 1,), (0, 0, 0)]
    assert len({derive(*each) for each in words}) == len(words)


@pytest.mark.parametrize("size", [2**16, 65_000, 1100])
def test_windows_are_well_mixed(size: int) -> None:
    """Chi-square of (place, value) and of neighbouring values over a grid, summed over keys: near 1 per degree."""
    grid, keys = 16, 40
    places = np.zeros((grid, grid))
    neighbours = np.zeros((grid, grid))
    for key in range(keys):
        order = permuted(np.arange(size), size, derive(9, key))
        places += np.histogram2d(np.arange(size), order, bins=grid, range=[[0, size]] * 2)[0]
        even = order[: size // 2 * 2]
        neighbours += np.histogram2d(even[::2], even[1::2], bins=grid, range=[[0, size]] * 2)[0]
    for counts in (places, neighbours):
        expected = counts.sum() / grid**2
        assert ((counts - expected) ** 2 / expected).sum() / (grid - 1) ** 2 < 1.6


def test_small_permutations_are_uniform() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(6000):
        order = tuple(permuted(np.arange(3), 3, derive(key)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(abs(count - 1000) < 150 for count in counts.values())
