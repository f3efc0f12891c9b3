"""Times of a user as integers of a time column: exact for any year and offset, and nothing else is taken for a time."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from forebay.data.windows.times import duration_ticks, ticks_of
from forebay.errors import InvalidOption

DAY_S = 86_400
YEAR_2300_S = 10_413_792_000


@pytest.mark.parametrize(
    ("value", "column", "ticks"),
    [
        ("2300-01-01", pa.timestamp("s"), YEAR_2300_S),
        ("2300-01-01", pa.timestamp("ns"), YEAR_2300_S * 10**9),
        ("2300-01-01", pa.date32(), YEAR_2300_S // DAY_S),
        (datetime.datetime(2300, 1, 1), pa.timestamp("us"), YEAR_2300_S * 10**6),
        ("1969-12-31 23:59:59.25", pa.timestamp("ms"), -750),
        ("1970-01-01T00:00:00.000000007", pa.timestamp("ns"), 7),
        (pd.Timestamp(7), pa.timestamp("ns"), 7),
        ("1970-01-02T00:00-05", pa.timestamp("s", "UTC"), DAY_S + 5 * 3600),
        ("1970-01-02T00+0530", pa.timestamp("s", "UTC"), DAY_S - 19_800),
        ("1970-01-02T00:00:00Z", pa.timestamp("s", "America/New_York"), DAY_S),
        ("1970", pa.date64(), 0),
        (np.int64(7), pa.int32(), 7),
    ],
)
def test_times_are_exact(value: object, column: pa.DataType, ticks: int) -> None:
    assert ticks_of("time", value, column) == ticks


@pytest.mark.parametrize(
    "value",
    ["", "NaT", "now", "today", "20200101", "2020-13-01", "2020-01-01T24:00", "1970-01-01T00:00:00.0000000001", None],
)
def test_what_is_not_a_time_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="is not a time: .*Give ISO 8601"):
        ticks_of("time", value, pa.timestamp("ns"))


@pytest.mark.parametrize("value", ["2020-01-01T00:00-05", "2020-01-01 00:00:00+0100", "2020-01-01T00Z"])
def test_an_offset_that_the_column_has_not_is_refused(value: str) -> None:
    with pytest.raises(InvalidOption, match="has an offset from UTC, but the time column is timestamp"):
        ticks_of("time", value, pa.timestamp("us"))


def test_durations_of_numpy_and_pandas_are_exact() -> None:
    assert duration_ticks("max_gap", np.int64(3), pa.timestamp("s")) == 3
    assert duration_ticks("max_gap", pd.Timedelta(1500, "ns"), pa.timestamp("ns")) == 1500
    with pytest.raises(InvalidOption, match="lies between two values"):
        duration_ticks("max_gap", pd.Timedelta(1500, "ns"), pa.timestamp("us"))


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "m", "h", "D", "W"])
def test_a_timedelta64_counts_its_own_unit(unit: str) -> None:
    expected = int(pd.Timedelta(np.timedelta64(2, unit)) / pd.Timedelta(1, "ns"))
    assert duration_ticks("max_gap", np.timedelta64(2, unit), pa.timestamp("ns")) == expected
    assert duration_ticks("max_gap", np.timedelta64(10**9 * 3600, "ns"), pa.timestamp("s")) == 3600
    assert duration_ticks("max_gap", np.timedelta64(12, f"5{unit}"), pa.timestamp("ns")) == 30 * expected


@pytest.mark.parametrize("value", [np.timedelta64("NaT"), np.timedelta64(1, "M"), np.timedelta64(3), True])
def test_a_timedelta64_without_a_length_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="give a duration"):
        duration_ticks("max_gap", value, pa.timestamp("s"))
    with pytest.raises(InvalidOption, match="give an integer"):
        ticks_of("time", value, pa.int64())
