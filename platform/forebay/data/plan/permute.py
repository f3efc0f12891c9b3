"""Permutations as pure functions of a key.

They are the only source of randomness in the order. Own arithmetic instead of `numpy.random`, whose streams may change
between NumPy releases: the order that a checkpoint refers to must never change. The mixer is SplitMix64 (Steele, Lea,
Flood, OOPSLA 2014). `data/kernels/orders.py` has the same arithmetic compiled. Like Grain's `index_shuffle`, its
permutations can be evaluated at an index, so that seeking costs nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

Ints = NDArray[np.int64]


def derive(*words: int) -> int:
    """Hash integers into one 64-bit key.

    Every integer and its position matter.

    >>> derive(7, 0) == derive(7, 0), derive(7, 0) == derive(0, 7)
    (True, False)
    """
    key = 0
    for word in words:
        key = _mix(((key ^ (word & _WORD)) + _GOLDEN) & _WORD)
    return key


def permutation(size: int, key: int) -> Ints:
    """Return a permutation of `range(size)`, int64 [size].

    It depends only on `size` and the 64-bit `key`. Each index gets a random integer, and these are sorted. The low bits
    of each hold its index, so all of them differ and every sorting algorithm gives the same result.

    >>> permutation(5, derive(7)).tolist()
    [0, 3, 4, 2, 1]
    """
    index = np.arange(size, dtype=np.uint64)
    mask = np.uint64((1 << max(size - 1, 0).bit_length()) - 1)
    words = mix_words(index * np.uint64(_GOLDEN) + np.uint64(key))
    words &= ~mask
    words |= index
    words.sort()
    words &= mask
    return words.view(np.int64)


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def mix_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers in place.

    Equal numbers stay equal, and all others look random.
    """
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
