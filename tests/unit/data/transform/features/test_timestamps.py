"""Points in time and durations as numbers, as NumPy and exact fractions have them."""

from __future__ import annotations

import datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay.data.transform.features.timestamps import NULL_TIME
from forebay.errors import InvalidOption, TransformFailed, WrongType

UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}


def numbers(table: pa.Table, **options: Any) -> Any:
    return fb.Transform(t=fb.Time("c", **options)).apply(table).arrays["t"][:, 0]


@given(
    ticks=st.lists(st.one_of(st.none(), st.integers(-(10**9), 10**9)), min_size=1, max_size=5),
    stored=st.sampled_from(["s", "ms", "us", "ns"]),
    unit=st.sampled_from(list(UNITS)),
    cut=st.integers(0, 5),
)
def test_numbers_are_those_of_exact_fractions(ticks: list[int | None], stored: str, unit: str, cut: int) -> None:
    array = pa.array(ticks, pa.int64()).cast(pa.timestamp(stored))
    table = pa.table({"c": pa.chunked_array([array[:cut], array[cut:].dictionary_encode().dictionary_decode()])})
    exact = [None if tick is None else Fraction(tick * UNITS[stored], UNITS[unit]) for tick in ticks]
    assert numbers(table, unit=unit).tolist() == [NULL_TIME if each is None else each.__floor__() for each in exact]
    found = numbers(table, unit=unit, dtype="float64")
    np.testing.assert_array_equal(found, [np.nan if each is None else float(each) for each in exact])


@pytest.mark.parametrize(
    ("kind", "value", "unit", "expected"),
    [
        (pa.date32(), datetime.date(1970, 1, 2), "h", 24),
        (pa.date64(), datetime.date(1969, 12, 31), "d", -1),
        (pa.time32("s"), datetime.time(1, 0, 1), "s", 3601),
        (pa.time64("us"), datetime.time(0, 1), "min", 1),
        (pa.duration("ms"), datetime.timedelta(seconds=-1), "ms", -1000),
        (pa.timestamp("us", "Europe/Berlin"), datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.UTC), "h", 1),
        (pa.dictionary(pa.int8(), pa.timestamp("s")), datetime.datetime(1970, 1, 1, 0, 0, 5), "s", 5),
        (pa.null(), None, "s", NULL_TIME),
    ],
    ids=str,
)
def test_every_type_of_time(kind: pa.DataType, value: Any, unit: str, expected: int) -> None:
    array = (
        pa.array([value], kind.value_type).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array([value], kind)
    )
    assert numbers(pa.table({"c": array}), unit=unit).tolist() == [expected]


def test_columns_side_by_side_and_no_rows() -> None:
    times = pa.array([1, None], pa.timestamp("s"))
    block = fb.Transform(t=fb.Time(["a", "b"])).apply(pa.table({"a": times, "b": times[::-1]}))
    assert block.arrays["t"].tolist() == [[1, NULL_TIME], [NULL_TIME, 1]]
    assert fb.Transform(t=fb.Time("a")).apply(pa.table({"a": times[:0]})).arrays["t"].shape == (0, 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TransformFailed, match="does not fit 64 bits"):
        numbers(pa.table({"c": pa.array([2**40], pa.timestamp("s"))}), unit="ns")
    with pytest.raises(WrongType, match="timestamps, dates, times of day and durations"):
        numbers(pa.table({"c": [1]}))
    with pytest.raises(InvalidOption, match="ns, us, ms, s, min, h, d"):
        fb.Time("c", unit="w")
    with pytest.raises(InvalidOption, match="difference"):
        fb.Time("c", dtype="float32")


YEARS = ("0001-01-01", "1000-06-15", "1677-09-21", "1969-12-31", "2024-02-29", "2262-04-12", "9999-12-31")


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "min", "h", "d"])
@pytest.mark.parametrize("stored", ["s", "ms", "us", "ns", "date32", "date64"])
def test_time_features_hold_each_year_or_refuse_it(stored: str, unit: str) -> None:
    feature = fb.Time("at", unit=unit)
    data_type = {"date32": pa.date32(), "date64": pa.date64()}.get(stored) or pa.timestamp(stored)
    tick = UNITS[{"date32": "d", "date64": "ms"}.get(stored, stored)]
    for text in YEARS:
        seconds = int(np.datetime64(text, "s").astype(np.int64))
        ticks = seconds * 10**9 // tick
        if not -(2**63) < ticks < 2**63:
            continue
        array = pa.array([0, None, ticks], pa.int64())
        array = array.cast(pa.int32()).view(data_type) if data_type == pa.date32() else array.view(data_type)
        table, exact = pa.table({"at": array}), ticks * tick // UNITS[unit]
        if -(2**63) < exact < 2**63:
            assert feature.arrays("t", table)["t"].ravel().tolist() == [0, -(2**63), exact]
            continue
        with pytest.raises(TransformFailed, match=r"row 2 of column 'at'.*larger unit"):
            feature.arrays("t", table)


@pytest.mark.parametrize("ticks", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_the_least_integer_is_no_time(ticks: int) -> None:
    table = pa.table({"at": pa.array([ticks], pa.int64()).view(pa.timestamp("ns"))})
    if ticks == -(2**63):
        with pytest.raises(TransformFailed, match="row 0"):
            fb.Time("at", unit="ns").arrays("t", table)
    else:
        assert fb.Time("at", unit="ns").arrays("t", table)["t"].tolist() == [[ticks]]
