"""Points in time and durations as numbers of a unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.parquet.decoded_table import Columns
from forebay.data.transform.block import BlockArray
from forebay.data.transform.features.columns import column_names, column_type, wrong_type
from forebay.data.transform.features.groups import Schema
from forebay.data.transform.features.numeric import whole
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption, TransformFailed
from forebay.runtime.memory.pool import empty_array

NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86_400 * 10**9,
}
"""Nanoseconds of each unit."""
NULL_TIME = -(1 << 63)
"""Null in an array of int64, which is NumPy's NaT."""


@dataclass(frozen=True, slots=True)
class Time:
    """Timestamps, dates, times and durations as numbers.

    They become array [rows, len(columns)] of int64 or float64. A timestamp or a date is the time since 1970-01-01T00:00
    in `unit` (ns, us, ms, s, min, h or d): in UTC for a column with a zone, and in the column's own clock for one
    without. A time of day counts from midnight.

    int64 is rounded down to whole units, and null is -2**63, as NumPy's NaT. float64 keeps fractions, and null is NaN.
    float32 is refused: it holds the seconds since 1970 to 128 s. Subtract an origin from the tensor before you
    cast it. float64 holds the nanoseconds since 1970 to 256 ns.

    Raises `InvalidOption` for another unit or dtype, `WrongType` for columns of other types, and `TransformFailed` for
    a time that int64 does not hold in this unit, with its column and row.
    """

    columns: Sequence[str]
    unit: str = "s"
    dtype: str = "int64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names("Time", self.columns))
        if self.unit not in NANOSECONDS:
            raise InvalidOption(f"Time(unit={self.unit!r}) is not known. Give one of {', '.join(NANOSECONDS)}.")
        if self.dtype not in ("int64", "float64"):
            raise InvalidOption(
                f"Time(dtype={self.dtype!r}): give int64 (whole units) or float64 (with fractions). Cast a difference "
                "of times to another dtype in the model."
            )

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def check(self, name: str, schema: Schema) -> None:
        for column in self.columns:
            found = column_type(f"Time {name!r}", column, schema)
            if _tick_ns(_without_dictionary(found)) is None:
                raise wrong_type(
                    f"Time {name!r}", column, found, "It takes timestamps, dates, times of day and durations."
                )

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        found = empty_array((table.num_rows, len(self.columns)), self.dtype)
        for index, column in enumerate(self.columns):
            found[:, index] = self._numbers(name, column, whole(table[column]))
        return {name: found}

    def identity(self) -> Identity:
        return ["Time", list(self.columns), self.unit, self.dtype]

    def _numbers(self, name: str, column: str, array: pa.Array) -> BlockArray:
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        tick, unit = _tick_ns(array.type), NANOSECONDS[self.unit]
        assert tick is not None, "check() takes no other types"
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_null(array.type):
            ticks = np.zeros(len(array), np.int64)
        else:
            stored = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
            ticks = pc.fill_null(stored, 0).to_numpy().astype(np.int64)
        found: BlockArray
        if self.dtype == "float64":
            # One division: ticks / 3 and ticks * (1 / 3) differ.
            found = ticks * float(tick // unit) if tick >= unit else ticks / float(unit // tick)
            found[is_null] = np.nan
            return found
        factor = max(tick // unit, 1)
        # The least value means null.
        least, most = -(((1 << 63) - 1) // factor), ((1 << 63) - 1) // factor
        if tick >= unit and len(ticks) and not least <= int(ticks.min()) <= int(ticks.max()) <= most:
            row = int(np.flatnonzero((ticks < least) | (ticks > most))[0])
            raise TransformFailed(
                f"Time {name!r}: row {row} of column {column!r} ({array.type}) is {ticks[row]}, which does not fit 64 "
                f"bits in unit={self.unit!r}. Use a larger unit, or leave the row out (where=...).",
                column=column,
                row=row,
            )
        found = ticks * factor if tick >= unit else ticks // (unit // tick)
        found[is_null] = NULL_TIME
        return found


def _without_dictionary(found: pa.DataType) -> pa.DataType:
    return found.value_type if pa.types.is_dictionary(found) else found


def _tick_ns(found: pa.DataType) -> int | None:
    """Nanoseconds per unit of this type.

    None for a type without time.
    """
    types = pa.types
    if types.is_date32(found):
        return NANOSECONDS["d"]
    if types.is_date64(found):
        return NANOSECONDS["ms"]
    if types.is_timestamp(found) or types.is_time(found) or types.is_duration(found):
        return NANOSECONDS[found.unit]
    return 1 if types.is_null(found) else None
