"""Column statistics, folded from the summaries of blocks.

They are equal to the bit in any order of the blocks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from forebay.data.transform.block import BlockArray
from forebay.errors import InvalidOption

Summary = NDArray[np.float64]
"""float64 [columns, 7]: one row per column, with the entries below."""

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
NUM_ENTRIES: Final = 7


def summarize(values: BlockArray) -> Summary:
    """Summarize `values` [steps, columns] in 56 bytes a column.

    A pure function of the values, also in the last bit. NumPy's sum is pairwise: its error grows with the logarithm of
    the number of values. `min` and `max` include infinities; without values they are inf and -inf.
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
    stacked = np.stack(summaries) if summaries else np.zeros((0, len(columns), 7))
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
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Shift and factor of each column, float32 [columns] each.

    A value becomes `(value - shift) * factor`. "standard": mean 0 and deviation 1. "minmax": from 0 to 1. "robust":
    median 0 and distance of the quartiles 1. A constant column is only shifted. A column without values is left as it
    is.

    Raises `InvalidOption` for an unknown scale.
    """
    if scale not in (None, "standard", "minmax", "robust"):
        raise InvalidOption(f'scale={scale!r}: choose "standard", "minmax", "robust" or None.', scale=scale)
    pairs = [_scaling(statistics[name], scale) for name in columns]
    shifts, widths = [shift for shift, _ in pairs], [width for _, width in pairs]
    usable = [width if math.isfinite(width) and width > 0 else 1.0 for width in widths]
    return np.array(shifts, np.float32), np.array([1 / width for width in usable], np.float32)


class QuantileCounts:
    """Exact quantiles of a float32 column in two passes.

    The first pass counts the upper 16 bits of each value. The second counts the lower 16 bits of the values that share
    the upper bits of a wanted rank. Bits are made order-preserving first. Integers add up in any order.

    Args:
        values_of: Returns the column's values by block, float32 [n] each. Called once a pass.
    """

    def __init__(self, values_of: Callable[[], Iterable[NDArray[np.float32]]]) -> None:
        self._values_of = values_of
        self._high = np.zeros(1 << 16, dtype=np.int64)
        for codes in _codes(values_of()):
            self._high += np.bincount(codes >> np.uint32(16), minlength=1 << 16)

    def at(self, shares: Sequence[float]) -> dict[float, float]:
        """Values at ranks `round(share * (count - 1))`.

        NaN without values.
        """
        ends = np.cumsum(self._high)
        count = int(ends[-1])
        if not count:
            return dict.fromkeys(shares, math.nan)
        ranks = {share: round(share * (count - 1)) for share in shares}
        tops = {share: int(np.searchsorted(ends, rank, side="right")) for share, rank in ranks.items()}
        low = {top: np.zeros(1 << 16, dtype=np.int64) for top in tops.values()}
        for codes in _codes(self._values_of()):
            high = codes >> np.uint32(16)
            for top in low:
                low[top] += np.bincount(codes[high == top] & np.uint32(0xFFFF), minlength=1 << 16)
        found = {}
        for share, rank in ranks.items():
            top = tops[share]
            inner = rank - int(ends[top] - self._high[top])
            bottom = int(np.searchsorted(np.cumsum(low[top]), inner, side="right"))
            found[share] = _value((top << 16) | bottom)
        return found


_SIGN, _ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)


def _codes(blocks: Iterable[BlockArray]) -> Iterator[NDArray[np.uint32]]:
    """Values except NaN, as integers of the same order."""
    for values in blocks:
        present = np.ascontiguousarray(values[~np.isnan(values)], np.float32) + np.float32(0)  # -0.0 becomes 0.0
        bits = present.view(np.uint32)
        yield bits ^ np.where(bits & _SIGN, _ALL, _SIGN)


def _value(code: int) -> float:
    bits = np.uint32(code)
    return float(np.array([bits ^ (_SIGN if bits & _SIGN else _ALL)], np.uint32).view(np.float32)[0])


def _column(entries: NDArray[np.float64]) -> ColumnStatistics:
    """Combine the summaries of one column, float64 [blocks, 7]."""
    count, nulls, infinite = (int(entries[:, entry].sum()) for entry in (COUNT, NULLS, INFINITE))
    finite = entries[:, COUNT] - entries[:, INFINITE]
    number = count - infinite
    mean = math.fsum(entries[:, SUM]) / number if number else math.nan
    used = finite > 0
    # Squares about each block's mean, moved to the mean of all (Chan, Golub, LeVeque 1979).
    moved = finite[used] * np.square(entries[used, SUM] / finite[used] - mean)
    squares = math.fsum([*entries[used, SQUARES].tolist(), *moved.tolist()])
    return ColumnStatistics(
        count=count,
        nulls=nulls,
        infinite=infinite,
        mean=mean,
        std=math.sqrt(squares / number) if number else math.nan,
        min=float(entries[:, MIN].min(initial=math.inf)) if count else math.nan,
        max=float(entries[:, MAX].max(initial=-math.inf)) if count else math.nan,
    )


def _scaling(column: ColumnStatistics, scale: str | None) -> tuple[float, float]:
    if scale is None or not column.count:
        return 0.0, 1.0
    if scale == "standard":
        return (column.mean, column.std) if column.count > column.infinite else (0.0, 1.0)
    if scale == "minmax":
        return column.min, column.max - column.min
    return column.quantile(0.5), column.quantile(0.75) - column.quantile(0.25)
