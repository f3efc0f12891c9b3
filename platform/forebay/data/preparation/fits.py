"""Exact statistics, fitted while a dataset is prepared.

They do not depend on the order of rows or on workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.prepared import FittedColumn
from forebay.data.parquet.column_casts import cast_column, table_without_views
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.parquet.type_promotion import plain_type
from forebay.data.transform.features.categories import check_categories
from forebay.data.transform.features.columns import check_numeric, column_names, column_type
from forebay.data.transform.features.vocabulary import Vocabulary, count_values, most_frequent
from forebay.errors import InvalidOption

_DIGITS, _DIGIT_BITS = 4, 16


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, nulls, moments and extremes of numeric columns.

    The moments are mean and standard deviation, in float64.
    """

    columns: str | Sequence[str]

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Exact quantiles of numeric columns, beside their moments.

    A quantile is the value at rank `ceil(p * count)` of the sorted column. Counts four times over the prepared column,
    16 bits at a time. Takes 512 KiB of counts for each quantile.
    """

    columns: str | Sequence[str]
    probabilities: Sequence[float] = (0.25, 0.5, 0.75)

    def __post_init__(self) -> None:
        _check_columns(self)
        given = tuple(self.probabilities) if isinstance(self.probabilities, Iterable) else ()
        object.__setattr__(self, "probabilities", given or self.probabilities)
        if not given or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in given):
            raise InvalidOption(f"{self}: probabilities are from 0 to 1, such as (0.01, 0.99).")


Fit = Vocabulary | Moments | Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Finite values of a column in one row group.

    `squares` is the sum of squares about `total / count`.
    """

    count: int
    nulls: int
    total: float
    squares: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPart:
    """Fits of one file, made where it is written.

    Parts merge in any order with one result.
    """

    counts: Mapping[str, Counter[Any]] = field(default_factory=dict)
    summaries: Mapping[str, tuple[Summary, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Fits of one preparation.

    Only rows for which `on` is true are used.
    """

    fits: tuple[Fit, ...] = ()
    on: pc.Expression | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(each, Fit) for each in self.fits):
            raise InvalidOption(
                f"fit={self.fits!r}: give fb.Vocabulary, fb.preparation.Moments and fb.preparation.Quantiles."
            )
        if self.on is not None and not isinstance(self.on, pc.Expression):
            raise InvalidOption(
                f"fit_on={self.on!r} is not a pyarrow expression. Write it as "
                'pyarrow.compute.field("split") == "train".'
            )

    @property
    def identity(self) -> str:
        """Text of what is fitted. It changes when the same fits give other statistics."""
        # 2: columns with quantiles have moments.
        return f"{self.fits!r}" + (" 2" if any(isinstance(each, Quantiles) for each in self.fits) else "")

    def check_schema(self, schema: pa.Schema) -> None:
        """Check that every column can be fitted.

        Raises `MissingColumn` or `WrongType` for a column that cannot, and `InvalidOption` if `on` does not choose rows
        of such a table.
        """
        try:
            self._selected(schema.empty_table())
        except (pa.ArrowException, TypeError) as error:
            raise InvalidOption(
                f"fit_on={self.on} does not choose rows ({error}), and the tables have columns {schema.names}. "
                "Give an expression of these columns that is true or false."
            ) from error
        types = {found.name: found.type for found in schema}
        for fit in self.fits:
            feature = type(fit).__name__
            for name in fit.columns:
                found = column_type(feature, name, types)
                if isinstance(fit, Vocabulary):
                    check_categories(feature, name, found)
                else:
                    check_numeric(feature, name, found, "float64")

    def part(self, row_groups: Sequence[pa.Table]) -> FitPart:
        """Fit one file."""
        tables = [self._selected(table) for table in row_groups]
        counts: dict[str, Counter[Any]] = {}
        for name in dict.fromkeys(_columns(self.fits, Vocabulary)):
            counts[name] = Counter()
            for chunk in (chunk for table in tables for chunk in _as_stored(table[name]).chunks):
                count_values(counts[name], chunk)
        names = dict.fromkeys(_columns(self.fits, Moments | Quantiles))
        return FitPart(
            counts=counts, summaries={name: tuple(_summary(table[name]) for table in tables) for name in names}
        )

    def vocabularies(self, parts: Iterable[FitPart]) -> dict[str, tuple[Any, ...]]:
        """Vocabulary of each column."""
        found = list(parts)
        kept = {}
        for fit in self.fits:
            if isinstance(fit, Vocabulary):
                for name in fit.columns:
                    counts: Counter[Any] = Counter()
                    for part in found:
                        counts.update(part.counts[name])
                    kept[name] = most_frequent(counts, fit.min_count, fit.max_size)
        return kept

    def statistics(self, parts: Iterable[FitPart], manifest: Manifest) -> dict[str, FittedColumn]:
        """Statistics of each column.

        Reads the columns of `Quantiles` from the files that were written.
        """
        found = list(parts)
        columns = {
            name: _merged([each for part in found for each in part.summaries[name]])
            for name in dict.fromkeys(_columns(self.fits, Moments | Quantiles))
        }
        for fit in self.fits:
            if isinstance(fit, Quantiles):
                for name in fit.columns:
                    known = columns[name]
                    quantiles = {**known.quantiles, **self._quantiles(manifest, name, fit.probabilities)}
                    columns[name] = replace(known, quantiles=quantiles)
        return columns

    def _selected(self, table: pa.Table) -> pa.Table:
        return table if self.on is None else table_without_views(table).filter(self.on)

    def _quantiles(self, manifest: Manifest, name: str, probabilities: Sequence[float]) -> dict[float, float]:
        reader = RowGroupReader(manifest)

        def values() -> Iterable[NDArray[np.float64]]:
            for index in range(len(manifest)):
                # The expression may use any column.
                table = reader.read(index, [name] if self.on is None else None)
                yield _finite(self._selected(table)[name])[0]

        return exact_quantiles(values, probabilities)


def exact_quantiles(values: Any, probabilities: Sequence[float]) -> dict[float, float]:
    """Return the value at each rank `ceil(p * count)`.

    Ranks are at least 1. NaN if there are no values. `values()` yields float64 arrays, the same ones at each of four
    calls. Their order does not matter. Memory: one array and 512 KiB per quantile.
    """
    prefixes = dict.fromkeys(probabilities, np.uint64(0))
    ranks: dict[float, int] = {}
    for digit in range(_DIGITS):
        shift = np.uint64(_DIGIT_BITS * (_DIGITS - 1 - digit))
        counts = {prefix: np.zeros(1 << _DIGIT_BITS, np.int64) for prefix in set(prefixes.values())}
        for array in values():
            bits = _ordered_bits(array)
            above = bits >> shift >> np.uint64(_DIGIT_BITS) if digit else np.zeros(len(bits), np.uint64)
            low = ((bits >> shift) & np.uint64(0xFFFF)).astype(np.int64)
            for prefix in counts:
                counts[prefix] += np.bincount(low[above == prefix], minlength=1 << _DIGIT_BITS)
        for probability, prefix in prefixes.items():
            total = np.cumsum(counts[prefix])
            if digit == 0:
                if not total[-1]:
                    return dict.fromkeys(probabilities, math.nan)
                ranks[probability] = max(math.ceil(probability * int(total[-1])), 1)
            digits = int(np.searchsorted(total, ranks[probability]))
            ranks[probability] -= int(total[digits - 1]) if digits else 0
            prefixes[probability] = (prefix << np.uint64(_DIGIT_BITS)) | np.uint64(digits)
    return {probability: _value_of(bits) for probability, bits in prefixes.items()}


def _ordered_bits(array: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Map floats to integers of the same order.

    Negative zero becomes zero.
    """
    bits: NDArray[np.uint64] = (array + 0.0).view(np.uint64)
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign)


def _value_of(bits: np.uint64) -> float:
    sign = np.uint64(1 << 63)
    return float(np.array(bits ^ sign if bits & sign else ~bits, np.uint64).view(np.float64))


def _finite(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], int]:
    """Finite values, and the number of others."""
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.uint8())
    floats = pc.cast(column, pa.float64(), safe=False).drop_null().to_numpy()
    finite = floats[np.isfinite(floats)]
    return finite, len(column) - len(finite)


def _as_stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Column in the units of a file.

    Parquet has no seconds: a vocabulary of them would hold no value that a reader finds.
    """
    return cast_column(column, str(plain_type(column.type)))


def _summary(column: pa.ChunkedArray) -> Summary:
    values, nulls = _finite(column)
    if not len(values):
        return Summary(count=0, nulls=nulls, total=0.0, squares=0.0, least=math.inf, most=-math.inf)
    total = float(values.sum())
    squares = float(np.square(values - total / len(values)).sum())
    return Summary(
        count=len(values),
        nulls=nulls,
        total=total,
        squares=squares,
        least=float(values.min()),
        most=float(values.max()),
    )


def _merged(summaries: Sequence[Summary]) -> FittedColumn:
    """Combine the summaries of all row groups.

    `fsum` is exact, so the order of the parts does not matter.
    """
    full = [each for each in summaries if each.count]
    count, nulls = sum(each.count for each in full), sum(each.nulls for each in summaries)
    if not count:
        return FittedColumn(nulls=nulls)
    mean = math.fsum(each.total for each in full) / count
    between = (each.count * (each.total / each.count - mean) ** 2 for each in full)
    squares = math.fsum([*(each.squares for each in full), *between])
    least, most = min(each.least for each in full), max(each.most for each in full)
    if least == most:  # the mean of three times 0.1 is another number
        mean, squares = least, 0.0
    return FittedColumn(count=count, nulls=nulls, mean=mean, std=math.sqrt(squares / count), min=least, max=most)


def _columns(fits: Sequence[Fit], kind: type[Fit] | UnionType) -> list[str]:
    return [name for fit in fits if isinstance(fit, kind) for name in fit.columns]


def _check_columns(fit: Any) -> None:
    object.__setattr__(fit, "columns", column_names(type(fit).__name__, fit.columns))
