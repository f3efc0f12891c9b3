"""Random bits equal the published generator's, and normal numbers Python's own."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from forebay.data.kernels import philox
from forebay.data.kernels.calls import row_words, to_normal
from forebay.data.kernels.kernel import Kernel

PHILOX = Kernel(lambda: philox, "philox")

# Counter, key and result of philox4x32-10 in Random123's kat_vectors.
KNOWN = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    words = [np.uint64(int(word, 16)) for word in f"{counter} {key}".split()]
    assert " ".join(f"{int(word):08x}" for word in PHILOX.call(*words)) == expected


@pytest.mark.parametrize("width", [0, 1, 3, 4, 6])
def test_the_counter_is_place_call_and_row(width: int) -> None:
    rows, key = np.array([5, (7 << 32) + 2], dtype=np.uint64), (3 << 32) + 9
    words = np.zeros((2, width), np.uint32)
    row_words(key, 4, rows, words)
    for low, high, found in ((5, 0, words[0]), (2, 7, words[1])):
        fours = [PHILOX.call(*map(np.uint64, (place, 4, low, high, 9, 3))) for place in range(2)]
        assert found.tolist() == [int(word) for four in fours for word in four][:width]


def test_normal_numbers_are_those_of_python() -> None:
    chances = np.concatenate([np.linspace(0, 1, 999)[1:-1], [0.075, 0.925, 1e-12, 1e-300, 2.0**-33, 1 - 2.0**-33]])
    found = chances.copy()
    to_normal(found)
    np.testing.assert_allclose(found, [NormalDist().inv_cdf(chance) for chance in chances], rtol=1e-14, atol=1e-15)
