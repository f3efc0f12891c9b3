"""Keys and permutations: exact literals, bijections, and equal chances of all orders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.data.plan.permute import derive, permutation


def test_literals_pin_the_arithmetic() -> None:
    assert derive(7, 0, 3) == 1846129603375045472
    assert permutation(8, derive(1)).tolist() == [3, 5, 1, 7, 6, 4, 0, 2]


@given(st.integers(0, 5000), st.integers(0, 2**64 - 1))
def test_permutation_is_one(size: int, key: int) -> None:
    assert sorted(permutation(size, key).tolist()) == list(range(size))


def test_keys_differ_in_every_word_and_place() -> None:
    words = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 0, 0), (2**64 - 1,), (0, 0, 0)]
    assert len({derive(*each) for each in words}) == len(words)


def test_small_permutations_are_uniform() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(6000):
        order = tuple(permutation(3, derive(key)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(abs(count - 1000) < 150 for count in counts.values())
