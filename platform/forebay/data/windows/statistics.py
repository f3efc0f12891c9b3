"""Column statistics, folded from the summaries of blocks.

They are equal to the bit in any order of the blocks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from forebay.data.transform.block import BlockArray
from forebay.errors import InvalidOption

Summary = NDArray[np.float64]
"""float64 [columns, 8]: one row per column, with the entries below."""

COUNT: Final = 0
"""Number of values that are not NaN."""
NULLS: Final = 1
INFINITE: Final = 2
MIN: Final = 3
MAX: Final = 4
SUM: Final = 5
"""Sum of the finite values."""
SQUARES: Final = 6
"""Sum of squared distances of the finite values from their mean."""
RESTS: Final = 7
"""Number of values that their array rounds."""
NUM_ENTRIES: Final = 8


def summarize(values: BlockArray) -> Summary:
    """Summarize `values` [steps, columns] in 64 bytes a column.

    A pure function of the values, also in the last bit. NumPy's sum is pairwise: its error grows with the logarithm of
    the number of values. `min` and `max` include infinities; without values they are inf and -inf. `RESTS` is left 0.
    """
    summary = np.zeros((values.shape[1], NUM_ENTRIES))
    for column, entries in enumerate(summary):
        wide = values[:, column].astype(np.float64)
        present = wide[~np.isnan(wide)]
        finite = present[np.isfinite(present)]
        entries[COUNT], entries[NULLS] = len(present), len(wide) - len(present)
        entries[INFINITE] = len(present) - len(finite)
        entries[MIN], entries[MAX] = present.min(initial=np.inf), present.max(initial=-np.inf)
        entries[SUM] = finite.sum()
        entries[SQUARES] = np.square(finite - entries[SUM] / max(len(finite), 1)).sum()
    return summary


def any_of(entry: int, summaries: Sequence[Summary]) -> NDArray[np.bool_]:
    """Whether any of `summaries` counts `entry`, by column."""
    found: NDArray[np.bool_] = np.any([each[:, entry] > 0 for each in summaries], axis=0)
    return found


Scale = Literal["standard", "minmax", "robust"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """Statistics of one column over a part's steps.

    Attributes:
        count: Values that are not null or NaN.
        nulls: Nulls and NaNs.
        infinite: Values of `count` that are infinite. `mean` and `std` leave them out.
        mean: Mean. NaN without values.
        std: Standard deviation of the population. NaN without values.
        min, max: Extremes. NaN without values.
        quantiles: Exact quantiles that were asked for, by share. See `quantile`.
    """

    count: int
    nulls: int
    infinite: int
    mean: float
    std: float
    min: float
    max: float
    quantiles: Mapping[float, float] = field(default_factory=dict)

    def quantile(self, share: float) -> float:
        """Value at rank `round(share * (count - 1))`.

        Raises `InvalidOption` for a share that was not asked for.
        """
        if share not in self.quantiles:
            raise InvalidOption(
                f"quantile({share}) was not counted; counted are {sorted(self.quantiles)}. Ask for it with "
                "quantiles=(...), which takes two passes over the cached blocks.",
                share=share,
            )
        return self.quantiles[share]

    def to_dict(self) -> dict[str, Any]:
        """Plain dict, for JSON."""
        return asdict(self) | {"quantiles": {str(share): value for share, value in self.quantiles.items()}}


def fold(summaries: Sequence[Summary], columns: Sequence[str]) -> dict[str, ColumnStatistics]:
    """Combine the summaries of all blocks into statistics.

    `math.fsum` rounds once, so the order of the summaries and how they were divided among workers change nothing.
    """
    stacked = np.stack(summaries) if summaries else np.zeros((0, len(columns), NUM_ENTRIES))
    return {name: _column(stacked[:, number]) for number, name in enumerate(columns)}


def statistics_id(statistics: Mapping[str, ColumnStatistics]) -> str:
    """SHA-256 (hex) of statistics.

    `repr` of a float is exact.
    """
    facts = [[name, repr(asdict(column))] for name, column in sorted(statistics.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def saved_statistics(
    statistics: Mapping[str, ColumnStatistics], *, scale: str | None, fill: str | None
) -> dict[str, Any]:
    """Statistics and their use, as plain data for checkpoints.

    Serving scales and fills with them.
    """
    columns = {name: column.to_dict() for name, column in statistics.items()}
    facts = json.dumps([statistics_id(statistics), scale, fill])
    return {"id": hashlib.sha256(facts.encode()).hexdigest(), "scale": scale, "fill": fill, "columns": columns}


def join_statistics(saved: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Join the `saved_statistics` of several datasets.

    Empty if all of them are empty.
    """
    used = {name: each for name, each in saved.items() if each}
    if not used:
        return {}
    columns = {f"{name}/{column}": facts for name, each in used.items() for column, facts in each["columns"].items()}
    facts = json.dumps([[name, each["id"]] for name, each in used.items()])
    own = {key: {name: each[key] for name, each in used.items()} for key in ("scale", "fill")}
    return {"id": hashlib.sha256(facts.encode()).hexdigest(), **own, "columns": columns}


def scaling_of(
    statistics: Mapping[str, ColumnStatistics], columns: Sequence[str], scale: Scale | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shift and factor of each column, float64 [columns] each.

    A value becomes `(value - shift) * factor`. "standard": mean 0 and deviation 1. "minmax": from 0 to 1. "robust":
    median 0 and distance of the quartiles 1. A constant column is only shifted, as is one that differs from its shift
    by less than 48 bits hold. A column without values is left as it is.

    Raises `InvalidOption` for an unknown scale, and for a column whose extremes or quartiles are infinite.
    """
    if scale not in (None, "standard", "minmax", "robust"):
        raise InvalidOption(f'scale={scale!r}: choose "standard", "minmax", "robust" or None.', scale=scale)
    pairs = [_scaling(statistics[name], scale) for name in columns]
    for name, pair in zip(columns, pairs, strict=True):
        if not all(map(math.isfinite, pair)):
            raise InvalidOption(
                f"scale={scale!r}, and column {name!r} has {statistics[name].infinite} infinite values in the training "
                'part. Use scale="standard", which leaves them out, or replace them before writing the files.',
                column=name,
            )
    usable = [width if width > _ROUNDING * abs(shift) else 1.0 for shift, width in pairs]
    return np.array([shift for shift, _ in pairs], np.float64), np.array([1 / width for width in usable], np.float64)


def needs_rests(column: ColumnStatistics, factor: float) -> bool:
    """Whether float32 would round a column's scaled values.

    By more than the rounding of the scaled values themselves, which are seldom beyond 8. `factor` is as in
    `scaling_of`.
    """
    return max(abs(column.min), abs(column.max)) * factor > _SELDOM_BEYOND


_SELDOM_BEYOND = 8.0
_ROUNDING = 2.0**-47
"""Sums round in the last of 53 bits, and blocks keep 48: a constant column of 0.1 can have a deviation of 1e-17."""


class QuantileCounts:
    """Exact quantiles of a column of floats.

    Each pass counts 16 bits of the values that share the upper bits of a wanted rank: two passes for float32, four for
    float64. Bits are made order-preserving first. Integers add up in any order.

    Args:
        values_of: Returns the column's values by block, arrays [n]. Called once a pass.
        dtype: Type in which the values are counted: the widest one among the blocks.
    """

    def __init__(
        self,
        values_of: Callable[[], Iterable[NDArray[np.floating[Any]]]],
        dtype: type[np.float32 | np.float64] = np.float32,
    ) -> None:
        self._values_of, self._dtype = values_of, dtype
        self._bits = 8 * np.dtype(dtype).itemsize
        self._high = self._counts({0})[0]

    def at(self, shares: Sequence[float]) -> dict[float, float]:
        """Values at ranks `round(share * (count - 1))`.

        NaN without values.
        """
        if not (count := int(self._high.sum())):
            return dict.fromkeys(shares, math.nan)
        # Code of the upper bits, and the rank among the values that share them.
        found = {share: _below(self._high, 0, round(share * (count - 1))) for share in shares}
        for known in range(_DIGIT, self._bits, _DIGIT):
            counts = self._counts({code for code, _ in found.values()}, known)
            found = {share: _below(counts[code], code, rank) for share, (code, rank) in found.items()}
        return {share: _value(code, self._dtype) for share, (code, _) in found.items()}

    def _counts(self, codes: Collection[int], known: int = 0) -> dict[int, NDArray[np.int64]]:
        """Count the next 16 bits behind `known` bits, by these."""
        counts = {code: np.zeros(1 << _DIGIT, dtype=np.int64) for code in codes}
        for bits in _codes(self._values_of(), self._dtype):
            upper = bits >> bits.dtype.type(self._bits - known) if known else np.zeros_like(bits)
            digit = (bits >> bits.dtype.type(self._bits - known - _DIGIT)) & bits.dtype.type((1 << _DIGIT) - 1)
            for code in counts:
                counts[code] += np.bincount(digit[upper == code].astype(np.int64), minlength=1 << _DIGIT)
        return counts


_DIGIT = 16


def _below(counts: NDArray[np.int64], code: int, rank: int) -> tuple[int, int]:
    """Code with the digit at `rank`, and the rank behind it."""
    ends = np.cumsum(counts)
    digit = int(np.searchsorted(ends, rank, side="right"))
    return (code << _DIGIT) | digit, rank - int(ends[digit] - counts[digit])


def _codes(
    blocks: Iterable[NDArray[np.floating[Any]]], dtype: type[np.float32 | np.float64]
) -> Iterator[NDArray[np.unsignedinteger[Any]]]:
    """Values except NaN, as integers of the same order."""
    for values in blocks:
        present: NDArray[Any] = values[~np.isnan(values)].astype(dtype)
        present += 0  # -0.0 becomes 0.0
        yield _in_order(present.view(f"uint{8 * present.itemsize}"))


def _in_order(bits: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Turn the bits of floats into integers of their order."""
    one = bits.dtype.type(1)
    sign = one << bits.dtype.type(8 * bits.itemsize - 1)
    return bits ^ np.where(bits & sign, ~bits.dtype.type(0), sign)


def _value(code: int, dtype: type[np.float32 | np.float64]) -> float:
    bits, sign = 8 * np.dtype(dtype).itemsize, 1 << (8 * np.dtype(dtype).itemsize - 1)
    unsigned = code ^ (sign if code & sign else (1 << bits) - 1)
    return float(np.array([unsigned], f"uint{bits}").view(dtype)[0])


def _column(entries: NDArray[np.float64]) -> ColumnStatistics:
    """Combine the summaries of one column, float64 [blocks, 8]."""
    count, nulls, infinite = (int(entries[:, entry].sum()) for entry in (COUNT, NULLS, INFINITE))
    finite = entries[:, COUNT] - entries[:, INFINITE]
    number = count - infinite
    mean = math.fsum(entries[:, SUM]) / number if number else math.nan
    least = float(entries[:, MIN].min(initial=math.inf)) if count else math.nan
    most = float(entries[:, MAX].max(initial=-math.inf)) if count else math.nan
    if least == most and number:  # the mean of three times 0.1 is another number
        mean = least
    used = finite > 0
    # Squares about each block's mean, moved to the mean of all (Chan, Golub, LeVeque 1979).
    moved = finite[used] * np.square(entries[used, SUM] / finite[used] - mean)
    squares = 0.0 if least == most else math.fsum([*entries[used, SQUARES].tolist(), *moved.tolist()])
    return ColumnStatistics(
        count=count,
        nulls=nulls,
        infinite=infinite,
        mean=mean,
        std=math.sqrt(squares / number) if number else math.nan,
        min=least,
        max=most,
    )


def _scaling(column: ColumnStatistics, scale: str | None) -> tuple[float, float]:
    if scale is None or not column.count:
        return 0.0, 1.0
    if scale == "standard":
        return (column.mean, column.std) if column.count > column.infinite else (0.0, 1.0)
    if scale == "minmax":
        return column.min, column.max - column.min
    return column.quantile(0.5), column.quantile(0.75) - column.quantile(0.25)
