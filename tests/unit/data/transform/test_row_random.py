"""Random numbers of rows: they belong to the row, and have the distributions that their names promise."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.transform.row_random import RowRandom
from forebay.errors import InvalidOption

METHODS: dict[str, Callable[[RowRandom], np.ndarray]] = {
    "uniform": lambda rng: rng.uniform(-1, 3, 5),
    "uniform of float64": lambda rng: rng.uniform(size=(2, 3), dtype=np.float64),
    "normal": lambda rng: rng.normal(1, 2),
    "normal of float64": lambda rng: rng.normal(size=3, dtype=np.float64),
    "integers": lambda rng: rng.integers(-3, 4, (2, 2)),
    "bernoulli": lambda rng: rng.bernoulli(0.3, 70),
    "choice": lambda rng: rng.choice([2.5, 3.5, 7.0], 9),
    "choice by chances": lambda rng: rng.choice(4, 9, p=[0.1, 0.2, 0.3, 0.4]),
    "permutation": lambda rng: rng.permutation(6),
    "generators": lambda rng: np.stack([one.standard_exponential(3) for one in rng.generators()]),
}
NUM_ROWS = 1 << 16


def numbers(method: str, rows: Any, key: int = 5, calls_before: int = 0) -> np.ndarray:
    rng = RowRandom(key, np.asarray(rows, dtype=np.uint64))
    for _ in range(calls_before):
        rng.uniform(size=calls_before)  # the sizes of earlier calls do not count, only their number
    return METHODS[method](rng)


@pytest.mark.parametrize("method", METHODS)
@given(rows=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), data=st.data())
def test_numbers_belong_to_the_row(method: str, rows: list[int], data: st.DataObject) -> None:
    whole = numbers(method, rows)
    assert len(whole) == len(rows)
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=9))
    assert np.array_equal(numbers(method, [rows[pick] for pick in picks]), whole[picks])


@pytest.mark.parametrize("method", METHODS)
def test_key_and_number_of_the_call_matter(method: str) -> None:
    variants = [numbers(method, range(40), key, calls) for key, calls in ((5, 0), (6, 0), (5 + (1 << 32), 0), (5, 1))]
    assert not any(np.array_equal(one, other) for n, one in enumerate(variants) for other in variants[:n])
    rng = RowRandom(5, np.arange(40, dtype=np.uint64))
    assert not np.array_equal(METHODS[method](rng), METHODS[method](rng))


def normal_share(value: float) -> float:
    return 0.5 * (1 + erf(value / sqrt(2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", range(6))
def test_floats_have_their_distribution(dtype: type[np.floating], index: int) -> None:
    """Largest distance of the distributions, 1.95 / sqrt(n) at a chance of 1 in 1,000 (Kolmogorov and Smirnov)."""
    rng = RowRandom(11, np.arange(NUM_ROWS, dtype=np.uint64))
    uniform, normal = rng.uniform(2, 4, 6, dtype=dtype)[:, index], rng.normal(1, 3, 6, dtype=dtype)[:, index]
    assert uniform.dtype == normal.dtype == dtype
    assert uniform.min() >= 2 and uniform.max() <= 4
    expected = (np.arange(NUM_ROWS) + 0.5) / NUM_ROWS
    shares = (np.sort(uniform) - 2) / 2, np.array([normal_share((value - 1) / 3) for value in np.sort(normal)])
    for share in shares:
        assert np.abs(share - expected).max() < 1.95 / sqrt(NUM_ROWS)


def chi_square(found: np.ndarray, chances: np.ndarray) -> float:
    """Distance in standard deviations: about normally distributed for many counts."""
    expected = found.sum() * chances
    return float((((found - expected) ** 2 / expected).sum() - (len(found) - 1)) / sqrt(2 * (len(found) - 1)))


def test_counts_are_as_likely_as_promised() -> None:
    rng = RowRandom(12, np.arange(NUM_ROWS, dtype=np.uint64))
    chances = np.array([0.1, 0.2, 0.3, 0.4])
    orders = rng.permutation(4) @ np.array([64, 16, 4, 1])
    counts = [
        (np.bincount(rng.integers(-3, 97) + 3, minlength=100), np.full(100, 0.01)),
        (np.bincount(rng.choice(4, p=chances)), chances),
        (np.bincount(rng.bernoulli(0.01)), np.array([0.99, 0.01])),
        (np.unique(orders, return_counts=True)[1], np.full(24, 1 / 24)),
    ]
    assert [abs(chi_square(found, chance)) < 4 for found, chance in counts] == [True] * 4
    assert sorted(rng.permutation(300)[7]) == list(range(300))
    wide = rng.integers(0, 1 << 32, 4)
    assert wide.min() < 1 << 16 and wide.max() > (1 << 32) - (1 << 16)


def test_neighbours_are_independent() -> None:
    """Rows, indices, calls and keys that differ by one. A correlation of 5 / sqrt(n) has a chance of 1 in 10**6."""
    rng = RowRandom(13, np.arange(NUM_ROWS, dtype=np.uint64))
    first, second = rng.normal(size=2, dtype=np.float64).T
    third = rng.normal(dtype=np.float64)
    other_key = RowRandom(14, np.arange(NUM_ROWS, dtype=np.uint64)).normal(size=2, dtype=np.float64)[:, 0]
    other_block = RowRandom(13, np.arange(NUM_ROWS, dtype=np.uint64) + np.uint64(1 << 32)).normal(dtype=np.float64)
    for other in (second, third, other_key, other_block, np.roll(first, 1)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / sqrt(NUM_ROWS)


def test_parameters_may_be_arrays_of_rows() -> None:
    rng = RowRandom(1, np.arange(50, dtype=np.uint64))
    stops = np.arange(1, 51)
    assert (rng.integers(stops) < stops).all() and (rng.integers(-stops[:, None], 0, 9) >= -stops[:, None]).all()
    assert rng.bernoulli(np.repeat([0.0, 1.0], 25)).tolist() == [False] * 25 + [True] * 25
    assert np.allclose(rng.normal(stops[:, None], 0.0, 2), stops[:, None])
    assert rng.uniform(size=(0,)).shape == (50, 0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda rng: rng.integers(3, 3), "has 0 to 0 values to choose from. Give 1 to"),
        (lambda rng: rng.integers(0, (1 << 32) + 1), "Give 1 to 2"),
        (lambda rng: rng.bernoulli([0.5, 1.5]), "p from 0.5 to 1.5. Give 0 to 1"),
        (lambda rng: rng.choice(3, p=[0.5, 0.6, 0.1]), "3 values and 3 probabilities with the sum 1.2. Give"),
        (lambda rng: rng.normal(dtype=np.float16), "dtype=float16 .* Choose float32 or float64"),
        (lambda rng: rng.uniform(size=-1), "size=-1"),
        (lambda rng: rng.permutation(0), "n=0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Callable[[RowRandom], Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        call(RowRandom(1, np.arange(2, dtype=np.uint64)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("low", "high"), [(0, 3), (1, 2), (-1e-8, 1), (-7, -3), (5, 5), ([[0.0], [1.0]], 2)])
def test_uniform_is_below_high(monkeypatch: pytest.MonkeyPatch, dtype: Any, low: Any, high: float) -> None:
    """Also for the largest random bits: their float plus `low` rounds up to `high`."""
    monkeypatch.setattr(RowRandom, "_words", lambda self, shape: np.full((len(self), *shape), 2**32 - 1, np.uint32))
    found = RowRandom(1, np.arange(2, dtype=np.uint64)).uniform(low, high, 3, dtype=dtype)
    least = np.broadcast_to(np.asarray(low, dtype), found.shape)
    assert np.all(np.where(least == high, found == high, (found < high) & (found > least)))
    assert found.dtype == dtype
