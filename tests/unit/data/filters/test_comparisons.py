"""Comparisons of row filters: exact for every number, also where Arrow has no common type for both sides."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from forebay.data.filters.where import Where
from forebay.data.sources.scan import scan
from forebay.errors import InvalidOption

COMPARED = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
COMPARED |= {">=": operator.ge}
HUGE = "1" + "0" * 400
"""A whole number beyond the floats."""


def kept(column: pa.Array, where: str) -> list[Any]:
    """Values for which a filter of column x is true."""
    expression = Where(where).expression({"x": column.type}, "a file")
    found = ds.dataset(pa.table({"x": column})).scanner(columns={"kept": expression}).to_table()["kept"]
    return [value for value, is_kept in zip(column.to_pylist(), found.to_pylist(), strict=True) if is_kept]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([-128, 0, 2, 127, None], pa.int8()), ["2", "1.5", "300", "-1000", "1e300", "-1e999", HUGE]),
        (pa.array([-(2**63), -5, 2**53, 2**53 + 1, 2**63 - 1, None]), ["2.5", "9007199254740993", "1e19", "2e9"]),
        (pa.array([0, 7, 2**63 + 5, 2**64 - 1, None], pa.uint64()), ["-1", "7.5", str(2**63 + 5), str(2**64 - 1)]),
        (
            pa.array([Decimal("-3.00"), Decimal("1.10"), Decimal("2.25"), None], pa.decimal128(38, 2)),
            ["1.1", "2.255", "1e-7", "1e40", "-1e999", "12345678901234567890123456789012345678", HUGE],
        ),
        (pa.array([1.0, 2.0**24, None], pa.float32()), ["16777217", "1", "1e300", HUGE]),
        (
            pa.array([-(2.0**64), 2.0**53, 2.0**53 + 2, 2.0**64, None]),
            [str(2**53 + 1), str(2**53 + 2), str(2**64 - 1), str(-(2**64) - 1), str(-(2**64) + 1), HUGE, f"-{HUGE}"],
        ),
        (pa.array(np.array([0.5, 2], np.float16)), ["0.5", "1", "70000"]),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "values",
)
@pytest.mark.parametrize("op", COMPARED)
def test_numbers_are_compared_as_they_are_written(column: pa.Array, values: list[str], op: str) -> None:
    for text in values:
        value = float(text) if "inf" in str(float(text)) else Fraction(text)
        numbers = [each for each in column.to_pylist() if each is not None]
        is_true = [COMPARED[op](float(n) if isinstance(value, float) else Fraction(n), value) for n in numbers]
        for where, wanted in ((f"x {op} {text}", True), (f"not x {op} {text}", False)):
            assert kept(column, where) == [n for n, each in zip(numbers, is_true, strict=True) if each == wanted]


def test_lists_of_numbers_beyond_the_type() -> None:
    column = pa.array([1, 2, None, 2**64 - 1], pa.uint64())
    assert kept(column, f"x in (-1, 1, 1.5, {2**64 - 1})") == [1, 2**64 - 1]
    assert kept(column, "x not in (-1, 1, 1e300)") == [2, 2**64 - 1]


def test_no_float_equals_an_integer_between_two() -> None:
    column = pa.array([math.nan, 2.0**53, math.inf, None])
    between = str(2**53 + 1)
    assert kept(column, f"x in ({between}, {HUGE})") == []
    assert len(kept(column, f"not x in ({between}, {HUGE})")) == len(kept(column, f"not x == {between}")) == 3
    assert kept(column, f"x > {between}") == kept(column, f"x >= {HUGE}") == [math.inf]
    assert kept(column, f"x < {HUGE}") == [2.0**53]
    assert len(kept(column, f"not x > {HUGE}")) == 2


@pytest.mark.parametrize("kind", ["", "struct "])
@pytest.mark.parametrize(
    ("where", "has_nan"),
    [
        ("x != 5", True),
        ("not x == 5", True),
        ("x not in (5, 6)", True),
        ("not x >= 5", True),
        ("not (x >= 5 and row >= 0)", True),
        ("x >= 5", False),
        ("not x != 5", False),
        ("x < 9 or row < 0", False),
        ("x is None or x == 6", False),
    ],
)
def test_a_nan_is_compared_wherever_it_lies(
    write_table: Callable[..., Path], where: str, has_nan: bool, kind: str
) -> None:
    """Statistics of a row group leave out NaN, so [5, NaN] looks as if all rows were 5."""
    values = [5.0, math.nan, 6.0, math.nan, math.nan, None]
    x = pa.StructArray.from_arrays([pa.array(values)], names=["x"]) if kind else pa.array(values)
    path = write_table("a.parquet", pa.table({"row": range(6), "s" if kind else "x": x}), rows_per_group=2)
    manifest = scan(path, where=where.replace("x", "s.x") if kind else where)
    found = [
        2 * group + row
        for index, group in enumerate(manifest.group_of.tolist())
        for row in np.flatnonzero(manifest.keeps(index)).tolist()
    ]
    assert [row for row in (1, 3, 4) if row in found] == ([1, 3, 4] if has_nan else [])


@pytest.mark.parametrize("where", ["s.x is None", "not s.x is not None", "not (s.x is not None or row < 0)"])
def test_fields_of_null_structs_are_null(write_table: Callable[..., Path], where: str) -> None:
    """Statistics of Arrow 26 count no null in the second row group: the dictionary has none."""
    texts = pa.array(["a", "a", "a", "a"]).dictionary_encode()
    structs = pa.StructArray.from_arrays([texts], names=["x"], mask=pa.array([False, False, True, False]))
    table = pa.table({"row": range(4), "s": structs})
    manifest = scan(write_table("a.parquet", table, rows_per_group=2, store_schema=False), where=where)
    assert manifest.group_of.tolist() == [1]
    assert manifest.keeps(0).tolist() == [True, False]


@pytest.mark.parametrize(("kind", "may_hide"), [(pa.int8(), False), (pa.decimal128(9, 2), False), (pa.string(), True)])
def test_nulls_of_numbers_in_structs_are_looked_up_in_statistics(kind: pa.DataType, may_hide: bool) -> None:
    where, kinds = Where("s.x is None"), {"s": pa.struct([("x", kind)])}
    assert where.bounds(kinds, "").equals(where.expression(kinds, "")) != may_hide


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())], ids=str)
def test_texts_of_every_layout(write_table: Callable[..., Path], kind: pa.DataType) -> None:
    path = write_table("a.parquet", pa.table({"x": pa.array(["a", "b", None]).cast(kind)}))
    assert [scan(path, where=f"x {rest}").num_rows for rest in ("!= 'a'", "in ('a', 'b')", "is None")] == [1, 2, 1]


def test_times_to_the_nanosecond() -> None:
    column = pa.array([1_000_000_000, 1_000_000_005], pa.timestamp("ns", "UTC"))
    assert kept(column.cast(pa.int64()), "x > 1000000000") == [1_000_000_005]
    assert [len(kept(column, f"x == '1970-01-01T00:00:01{rest}'")) for rest in ("Z", ".000000005+00:00")] == [1, 1]
    with pytest.raises(InvalidOption, match="lose data"):
        kept(column.cast(pa.timestamp("us", "UTC"), safe=False), "x == '1970-01-01T00:00:01.000000005Z'")
    for rest in (".0000000001Z", ",000000005Z"):
        with pytest.raises(InvalidOption, match="where compares column 'x'"):
            kept(column, f"x == '1970-01-01T00:00:01{rest}'")
