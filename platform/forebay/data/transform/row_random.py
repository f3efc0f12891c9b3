"""Random numbers per row, in any batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from forebay.data.kernels.calls import row_words, to_normal
from forebay.errors import InvalidOption, whole_number

Size: TypeAlias = int | tuple[int, ...]

_MOST_VALUES = 1 << 32
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class RowRandom:
    """Random numbers of the rows of a batch.

    The methods have the names of `numpy.random.Generator`. Each method returns an array [rows, *size]: `size` numbers
    for each row, one without a `size`. A row's numbers depend on the seed, the epoch, the row, and how many methods
    were called before. They do not depend on the batch, the rank or the other rows. So call the methods in the same
    order for every batch: draw numbers for all rows, and use those that are needed.

    Bounds and parameters are numbers, or arrays that broadcast to the result as NumPy does it: [rows, 1] is one for
    each row of a result [rows, n]. All numbers are equal on every machine, but `normal` may differ in its last bit.

    Args:
        key: Key of the seed and the epoch, 64 bits.
        rows: Number of each row, uint64 [rows]. Equal ones get equal numbers.
    """

    def __init__(self, key: int, rows: NDArray[np.uint64]) -> None:
        self._key, self._rows = key, rows
        self._num_calls = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def uniform(
        self, low: ArrayLike = 0.0, high: ArrayLike = 1.0, size: Size = (), *, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Floats from `low` to below `high`.

        They are float32 (24 random bits) or float64 (52).
        """
        kind, shape = _float(dtype), _shape(size)
        values: NDArray[Any]
        if kind == np.float32:
            words = self._words(shape)
            words >>= np.uint32(8)
            values = words.astype(np.float32)
            values *= np.float32(2.0**-24)
        else:
            values = self._fractions(shape)
            values *= 2.0**-52
        lowest, highest = _as(low, values), _as(high, values)
        values *= highest - lowest
        values += lowest
        if lowest.any() and np.all(lowest <= highest):  # the sum may round up to `high`, and the product does not
            np.minimum(values, np.nextafter(highest, lowest), out=values)
        return values

    def normal(
        self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: Size = (), *, dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Normally distributed floats.

        The mean is `loc`, the standard deviation `scale`, the dtype float32 or float64. They reach 6.3 standard
        deviations (float32) or 8.1 (float64) from the mean.
        """
        kind, shape = _float(dtype), _shape(size)
        if kind == np.float32:
            chances, unit = self._words(shape).astype(np.float64), 2.0**-32
        else:
            chances, unit = self._fractions(shape), 2.0**-52
        chances += 0.5
        chances *= unit
        to_normal(chances.reshape(-1))
        values: NDArray[Any] = chances.astype(kind, copy=False)
        values *= _as(scale, values)
        values += _as(loc, values)
        return values

    def integers(self, low: ArrayLike, high: ArrayLike | None = None, size: Size = ()) -> NDArray[np.int64]:
        """Integers from `low` to below `high`, int64.

        `low` alone: from 0 to below `low`. At most 2**32 values.
        """
        shape = _shape(size)
        least, stop = (0, low) if high is None else (low, high)
        first, count = np.asarray(least, dtype=np.int64), np.asarray(stop, dtype=np.int64) - np.asarray(least, np.int64)
        if count.size and not (count.min() >= 1 and count.max() <= _MOST_VALUES):
            raise InvalidOption(
                f"rng.integers(low, high) has {count.min()} to {count.max()} values to choose from. Give 1 to 2**32: "
                "high is not among them.",
            )
        low_part, counts = self._wide_words(shape), count.astype(np.uint64)
        # The upper half of a product of 64 and 32 bits: chances of values differ by at most 2**-32 of a chance.
        words = low_part >> np.uint64(32)
        low_part &= np.uint64(_MOST_VALUES - 1)
        low_part *= counts
        low_part >>= np.uint64(32)
        words *= counts
        words += low_part
        words >>= np.uint64(32)
        values = words.view(np.int64)
        values += first
        return values

    def bernoulli(self, p: ArrayLike = 0.5, size: Size = ()) -> NDArray[np.bool_]:
        """True with probability `p`, bool."""
        chance = np.asarray(p, dtype=np.float64)
        if chance.size and not (chance.min() >= 0.0 and chance.max() <= 1.0):
            raise InvalidOption(f"rng.bernoulli(p) has p from {chance.min()} to {chance.max()}. Give 0 to 1.")
        words = self._words(_shape(size))
        return np.less(words, chance * 2.0**32, out=np.empty(words.shape, np.bool_))

    def choice(self, values: ArrayLike, size: Size = (), *, p: ArrayLike | None = None) -> NDArray[Any]:
        """Random entries of `values`.

        `values` is an array [n], or a number for `range(values)`. All are equally likely, or by the probabilities `p`
        [n]. A row may get the same entry several times. `permutation` gives each once.
        """
        entries = np.arange(values) if isinstance(values, int | np.integer) else np.asarray(values)
        if p is None:
            found: NDArray[Any] = entries[self.integers(len(entries), size=size)]
            return found
        chances = np.asarray(p, dtype=np.float64)
        if chances.shape != entries.shape[:1] or chances.min() < 0 or not np.isclose(chances.sum(), 1.0):
            raise InvalidOption(
                f"rng.choice(values, p=...) has {len(entries)} values and {chances.size} probabilities with the sum "
                f"{chances.sum():g}. Give one for each value, from 0, with the sum 1."
            )
        ends = np.cumsum(chances)
        index = np.searchsorted(ends / ends[-1], self.uniform(size=size, dtype=np.float64), side="right")
        chosen: NDArray[Any] = entries[index]
        return chosen

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Permutation of `range(n)` for each row, int64 [rows, n]."""
        words = self._words((whole_number("n", n, least=1, most=_MOST_VALUES - 1),)).astype(np.uint64)
        words <<= np.uint64(32)
        words |= np.arange(n, dtype=np.uint64)  # Equal numbers keep their order, whatever the algorithm.
        words.sort(axis=-1)
        words &= np.uint64(_MOST_VALUES - 1)
        return words.view(np.int64)

    def generators(self) -> Iterator[np.random.Generator]:
        """Yield a NumPy generator for each row.

        For what no method here gives. About 6 µs for each row. Its numbers may change with NumPy's version, and each
        generator must be used before the next is taken.
        """
        call, self._num_calls = self._num_calls, self._num_calls + 1
        bits = np.random.Philox()
        generator, state = np.random.Generator(bits), bits.state
        state["buffer_pos"], state["has_uint32"], state["uinteger"] = 4, 0, 0
        for row in self._rows:
            state["state"] = {
                "key": np.array([self._key, call], np.uint64),
                "counter": np.array([0, 0, row, 0], np.uint64),
            }
            bits.state = state
            yield generator

    def _words(self, shape: tuple[int, ...]) -> NDArray[np.uint32]:
        """Random bits of the next call, uint32 [rows, *shape]."""
        words = np.empty((len(self), *shape), np.uint32)
        row_words(self._key, self._num_calls, self._rows, words.reshape(len(self), math.prod(shape)))
        self._num_calls += 1
        return words

    def _wide_words(self, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """Random bits of the next call, uint64 [rows, *shape]."""
        pairs: NDArray[np.uint64] = self._words((*shape, 2)).view("<u8")[..., 0]
        return pairs

    def _fractions(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Random integers of 52 bits, as float64 [rows, *shape]."""
        return (self._wide_words(shape) >> np.uint64(12)).astype(np.float64)


def _shape(size: Size) -> tuple[int, ...]:
    return tuple(whole_number("size", each) for each in (size if isinstance(size, tuple) else (size,)))


def _float(dtype: DTypeLike) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    if kind not in _FLOATS:
        raise InvalidOption(f"dtype={kind} was given to random floats. Choose float32 or float64, and cast the result.")
    return kind


def _as(parameter: ArrayLike, values: NDArray[Any]) -> NDArray[Any]:
    """Cast a parameter to the dtype of `values`.

    float64 beside float32 would cost a copy of all numbers.
    """
    return np.asarray(parameter, dtype=values.dtype)
