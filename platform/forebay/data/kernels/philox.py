"""Compiled random numbers of rows.

Philox4x32-10, and the inverse of the normal distribution.

Philox is a pure function of a key and a counter (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC 2011), so each row has numbers of its own at no cost. Only integer arithmetic: equal on every machine.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
from numba import float64, types, uint32, uint64, void
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part

_LOW = 0xFFFFFFFF
_ROUNDS = 10
_WORDS = 4

# fmt: off
# Coefficients of AS 241: of the middle 85 %, of both sides, and of the last 3e-11.
_CENTRE = (
    2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
    13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608,
)
_CENTRE_BELOW = (
    5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0,
)
_SIDE = (
    7.7454501427834140764e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258,
    3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734,
)
_SIDE_BELOW = (
    1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.148103976427480074590,
    0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0,
)
_TAIL = (
    2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.0265321895265761230930,
    0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720,
)
_TAIL_BELOW = (
    2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
    0.0148753612908506148525, 0.136929880922735805310, 0.599832206555887937690, 1.0,
)
# fmt: on


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four random words of 32 bits.

    For a counter of four and a key of two, all held as uint64.
    """
    for _ in range(_ROUNDS):
        first, second = uint64(0xD2511F53) * c0, uint64(0xCD9E8D57) * c2
        c0, c1 = (second >> uint64(32)) ^ c1 ^ k0, second & uint64(_LOW)
        c2, c3 = (first >> uint64(32)) ^ c3 ^ k1, first & uint64(_LOW)
        k0, k1 = (k0 + uint64(0x9E3779B9)) & uint64(_LOW), (k1 + uint64(0xBB67AE85)) & uint64(_LOW)
    return c0, c1, c2, c3


def _row_words(key: Any, call: Any, rows: NDArray[np.uint64], words: NDArray[np.uint32]) -> None:
    """Write the random words of each row.

    uint32 [rows, n]. The counter is (position in the row / 4, call, row).
    """
    low, width = uint64(_LOW), words.shape[1]
    for i in range(len(rows)):
        for start in range(0, width, _WORDS):
            four = philox(
                uint64(start // _WORDS), call, rows[i] & low, rows[i] >> uint64(32), key & low, key >> uint64(32)
            )
            words[i, start] = uint32(four[0])
            if start + 1 < width:
                words[i, start + 1] = uint32(four[1])
            if start + 2 < width:
                words[i, start + 2] = uint32(four[2])
            if start + 3 < width:
                words[i, start + 3] = uint32(four[3])


def _ratio(numerator: Any, denominator: Any, x: float) -> float:
    """Ratio of two polynomials of degree 7, the highest coefficient first."""
    above, below = numerator[0], denominator[0]
    for k in range(1, 8):
        above, below = above * x + numerator[k], below * x + denominator[k]
    return float(above / below)


def _to_normal(values: NDArray[np.float64]) -> None:
    """Replace probabilities by standard normal quantiles.

    The probabilities lie in (0, 1).

    Algorithm AS 241 (Wichura, Applied Statistics, 1988), as `statistics.NormalDist.inv_cdf` has it. Of 20 numbers 17
    need no logarithm.
    """
    for i in range(len(values)):
        p = values[i]
        q = p - 0.5
        if abs(q) <= 0.425:
            values[i] = q * ratio(_CENTRE, _CENTRE_BELOW, 0.180625 - q * q)
            continue
        r = sqrt(-log(p if q <= 0.0 else 1.0 - p))
        z = ratio(_SIDE, _SIDE_BELOW, r - 1.6) if r <= 5.0 else ratio(_TAIL, _TAIL_BELOW, r - 5.0)
        values[i] = -z if q < 0.0 else z


philox = kernel(types.UniTuple(uint64, 4)(uint64, uint64, uint64, uint64, uint64, uint64))(_philox)
row_words = kernel(void(uint64, uint64, uint64[::1], uint32[:, ::1]))(_row_words)
_eight = types.UniTuple(float64, 8)
ratio = part(float64(_eight, _eight, float64))(_ratio)
to_normal = kernel(void(float64[::1]))(_to_normal)
