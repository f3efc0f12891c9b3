"""One type for a column that files hold with several: the same whichever file comes first, and exact."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.column_casts import cast_column, without_views
from forebay.data.parquet.type_promotion import common_type, is_read_as, is_same_parquet_type

DICTIONARY = "dictionary<values=string, indices=int8, ordered=0>"
COMMON = [
    (["string"], "string"),
    (["string_view"], "string_view"),  # one type is not touched
    (["null", "large_string"], "large_string"),
    (["string", "string_view", "large_string", "dictionary<values=string, indices=int32, ordered=0>"], "string"),
    (
        ["dictionary<values=string, indices=int8, ordered=0>", "dictionary<values=string, indices=int32, ordered=0>"],
        "string",
    ),
    (["binary", "binary_view", "large_binary"], "binary"),
    (["extension<arrow.uuid>", "fixed_size_binary[16]"], "fixed_size_binary[16]"),
    (["extension<arrow.json>", "string_view"], "string"),
    (["list<item: int64>", "list<element: int64 not null>", "large_list<item: int64>"], "list<element: int64>"),
    (["list_view<item: int8>", "fixed_size_list<item: null>[2]", "list<element: int32>"], "list<element: int32>"),
    (["list<item: string_view>", "list<element: string>"], "list<element: string>"),
    (["struct<a: int8, b: null>", "struct<b: string_view, a: int64>"], "struct<a: int64, b: string>"),
    (["map<string_view, int8>", "map<string, int64 ('entries')>"], "map<string, int64>"),
    (["timestamp[s]", "timestamp[ms]"], "timestamp[ms]"),
    (["timestamp[us, tz=Europe/Berlin]", "timestamp[us, tz=UTC]"], "timestamp[us, tz=UTC]"),
    (["int8", "int16", "int64", "null"], "int64"),
    (["int8", "uint8", "uint16"], "int32"),
    (["uint8", "uint64"], "uint64"),
    (["int64", "uint32"], "int64"),
    (["halffloat", "float", "double"], "double"),
    (["decimal32(5, 2)", "decimal128(10, 2)"], "decimal128(10, 2)"),
    (["decimal128(38, 2)", "decimal256(60, 2)"], "decimal256(60, 2)"),
    (["null"], "null"),
]
REFUSED = [
    *(["int64", "double"], ["int64", "uint64"], ["string", "int64"], ["string", "binary"], ["bool", "int8"]),
    *(["int32", "float"], ["date32[day]", "timestamp[us]"], ["timestamp[us]", "timestamp[ms]"]),
    *(
        ["timestamp[us]", "timestamp[us, tz=UTC]"],
        ["decimal128(10, 2)", "decimal128(10, 3)"],
        ["duration[us]", "int64"],
    ),
    *(["struct<a: int8>", "struct<a: int8, b: int8>"], ["list<item: int8>", "int8"], ["extension<x>", "null"]),
    *(["list<item: int64>", "list<item: double>"], ["fixed_size_binary[2]", "fixed_size_binary[3]"]),
]


@pytest.mark.parametrize(("types", "expected"), [*COMMON, *((types, None) for types in REFUSED)], ids=str)
def test_the_common_type_does_not_depend_on_the_order(types: list[str], expected: str | None) -> None:
    assert {common_type(each) for each in itertools.islice(itertools.permutations(types), 24)} == {expected}


NESTED_TEXT = ["list<item: list<item: string>>", "large_list<item: list_view<item: string_view>>"]
LISTS = ["list<element: int64>", "large_list<item: int16>", "list_view<item: int8>", "large_list_view<item: int32>"]
STRUCTS = ["struct<a: int64, b: string>", "struct<b: string_view, a: int8>"]
DECIMALS = ["decimal128(20, 2)", "decimal32(5, 2)", "decimal64(10, 2)", "decimal256(40, 2)"]
HELD: list[tuple[list[str], list[Any]]] = [
    (["string", "large_string", "string_view", DICTIONARY], ["ab", None, "", "c"]),
    (["binary", "large_binary", "binary_view"], [b"ab", None, b""]),
    ([*LISTS, "fixed_size_list<item: int32>[2]"], [[9, 8], None, [None, 1]]),
    (LISTS, [None, [1, 2], [], [3]]),
    (NESTED_TEXT, [[["a"], []], None, [None]]),
    (STRUCTS, [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    (["map<string, int64>", "map<string_view, int8>"], [[("a", 1)], None, []]),
    (DECIMALS, [Decimal("1.25"), None]),
    (["int8", "int16", "int32", "int64"], [-5, None, 127]),
    (["halffloat", "float", "double"], [0.5, None, float("inf"), -0.0]),
    (["null", "list<element: struct<a: int8>>"], [None, None]),
    (["null", "map<string, int8>"], [None, None]),
]


@pytest.mark.parametrize(("types", "values"), HELD, ids=lambda value: str(value[0]))
def test_casts_keep_every_value_also_of_slices(types: list[str], values: list[Any]) -> None:
    for one, other in itertools.permutations(types, 2):
        common = common_type([one, other])
        assert common is not None
        array = pa.array(values, parse_type(one))
        for start in range(len(values) + 1):
            found = cast_column(pa.chunked_array([array.slice(start)], array.type), common)
            found.validate(full=True)
            assert (str(found.type), found.to_pylist()) == (common, array.slice(start).to_pylist())


def test_a_time_that_does_not_fit_is_an_error_and_a_finer_one_is_cut() -> None:
    far = pa.chunked_array([pa.array([2**62], pa.timestamp("ms"))])
    with pytest.raises(pa.ArrowInvalid):
        cast_column(far, "timestamp[us]")
    assert (
        cast_column(pa.chunked_array([pa.array([1999], pa.timestamp("ns"))]), "timestamp[us]")
        .cast(pa.int64())[0]
        .as_py()
        == 1
    )


@pytest.mark.parametrize(
    ("there", "table", "expected"),
    [
        ("int32", "int64", True),
        ("int32", "double", True),
        ("int64", "double", False),
        ("int32", "decimal128(12, 2)", True),
        ("int64", "decimal128(12, 2)", False),
        ("decimal128(10, 2)", "decimal128(14, 4)", True),
        ("decimal128(10, 2)", "decimal128(10, 4)", False),
        ("date32[day]", "timestamp[us]", True),
        ("date32[day]", "timestamp[us, tz=UTC]", False),
        ("timestamp[ns]", "timestamp[us, tz=UTC]", True),
        ("timestamp[us]", "timestamp[us, tz=UTC]", False),
        ("int64", "int32", False),
        ("string", "int64", False),
        ("struct<a: int32>", "struct<a: int64, b: string>", True),
        ("list<item: string_view>", "list<element: string>", True),
        ("map<string, date32[day]>", "map<string, timestamp[us]>", True),
    ],
)
def test_what_a_table_reads_as_its_own_type(there: str, table: str, expected: bool) -> None:
    assert is_read_as(there, table) == expected


def test_hints_are_no_other_parquet_type() -> None:
    assert is_same_parquet_type("large_list<item: string_view>", "list<element: string>")
    assert not is_same_parquet_type("int32", "int64")


def test_views_become_what_arrow_filters() -> None:
    kind = pa.struct([("a", pa.list_(pa.string_view())), ("b", pa.map_(pa.string(), pa.binary_view()))])
    rows = [{"a": ["x", None], "b": [("k", b"v")]}, None]
    found = without_views(pa.chunked_array([pa.array(rows, kind)]))
    assert pa.table({"x": found}).filter(pa.array([True, False]))["x"].to_pylist() == rows[:1]
