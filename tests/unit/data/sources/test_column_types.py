"""Files of one folder whose writers left other Arrow types, in each order: one column, with every value."""

from __future__ import annotations

import datetime
import itertools
import logging
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import MixedSchemas

Write = Callable[..., Path]

DICTIONARY = "dictionary<values=string, indices=int32, ordered=0>"
LISTS = ["list<item: int64>", "large_list<item: int64>", "list_view<item: int64>", "fixed_size_list<item: int64>[2]"]
ZONES = ["timestamp[us, tz=UTC]", "timestamp[us, tz=Europe/Berlin]"]
HINTS: list[tuple[list[str], list[Any]]] = [
    (["string", "large_string", "string_view", DICTIONARY, "extension<arrow.json>"], ["1", None, "22"]),
    (["binary", "large_binary", "binary_view"], [b"a", None, b""]),
    (LISTS, [[1, 2], None, [3, 4]]),
    (["list<item: string>", "list<item: string_view>", "large_list<item: large_string>"], [["a", None], None, []]),
    (["struct<a: string_view, b: int64>", "struct<b: int64, a: string>"], [{"a": "x", "b": 1}, None]),
    (["map<string_view, int64>", "map<string, int64>"], [[("a", 1)], None, []]),
    (["decimal128(9, 2)", "decimal32(9, 2)", "decimal64(9, 2)"], [Decimal("1.25"), None]),
    (["timestamp[s]", "timestamp[ms]"], [datetime.datetime(1969, 1, 1), None]),
    (ZONES, [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None]),
]
WIDENED: list[tuple[list[str], list[Any]]] = [
    (["int8", "int16", "int32", "int64"], [-5, None, 100]),
    (["uint8", "uint32", "int16"], [5, None, 100]),
    (["halffloat", "float", "double"], [0.5, None, -0.0]),
    (["null", "int8", "string", "list<item: int64>", "struct<a: int64>", DICTIONARY], [None, None]),
    (["decimal128(5, 2)", "decimal128(12, 2)"], [Decimal("-1.25"), None]),
    (["list<item: null>", "list<item: float>", "list<item: double>"], [[None], None, []]),
]


def array_of(kind: str, values: list[Any]) -> pa.Array:
    found = parse_type(kind)
    if isinstance(found, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(found, pa.array(values, found.storage_type))
    return pa.array(values, found)


def values_of(manifest: fb.Manifest, name: str = "x") -> list[Any]:
    reader = RowGroupReader(manifest)
    tables = [reader.read(index) for index in range(len(manifest))]
    assert len({table.schema.field(name).type for table in tables}) == 1
    return [value for table in tables for value in table[name].to_pylist()]


def pairs_of(types: list[str]) -> list[tuple[str, str]]:
    """Pairs with the first type: two others meet in the test of all orders in `test_type_promotion.py`."""
    return [(types[0], other) for other in types[1:]]


@pytest.mark.parametrize(("types", "values"), [*HINTS, *WIDENED], ids=lambda value: str(value[0]))
def test_each_two_types_are_one_column_in_both_orders(types: list[str], values: list[Any], write_table: Write) -> None:
    for number, pair in enumerate(pairs_of(types)):
        found = []
        for order in (pair, pair[::-1]):
            for name, kind in zip("ab", order, strict=True):
                columns = {"x": array_of(kind, values), "y": [7] * len(values)}
                folder = write_table(f"{number}-{order}/{name}.parquet", columns).parent
            manifest = fb.scan(folder)
            assert values_of(manifest) == pa.array(values * 2, parse_type(manifest.fields[0].type)).to_pylist()
            assert fb.scan(folder, columns=["y"], where="x is None").num_rows == 2 * values.count(None)
            found.append(manifest.fields)
        assert found[0] == found[1]


def test_a_wider_type_is_said_and_a_hint_is_not(write_table: Write, caplog: pytest.LogCaptureFixture) -> None:
    write_table("a.parquet", {"n": array_of("int32", [1]), "s": array_of("string", ["a"])})
    folder = write_table("b.parquet", {"n": array_of("int64", [1]), "s": array_of("string_view", ["a"])}).parent
    with caplog.at_level(logging.WARNING):
        fb.scan(folder)
    assert caplog.messages == ["Column 'n' is int32 and int64 in different files, and is read as int64."]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("int64", "double"), ("string", "int64"), ("timestamp[us, tz=UTC]", "timestamp[us]")),
        *(("decimal128(9, 2)", "decimal128(9, 3)"), ("int64", "uint64"), ("bool", "int8"), ("string", "binary")),
        *(("struct<a: int8>", "struct<a: int8, b: int8>"), ("duration[us]", "int64")),
    ],
)
def test_other_types_are_refused_by_column_files_and_types(write_table: Write, one: str, other: str) -> None:
    write_table("a.parquet", {"x": array_of(one, [None]), "y": [1]})
    folder = write_table("b.parquet", {"x": array_of(other, [None]), "y": [1]}).parent
    with pytest.raises(MixedSchemas) as caught:
        fb.scan(folder)
    files = (f"{folder}/a.parquet", f"{folder}/b.parquet")
    assert caught.value.facts == {"column": "x", "files": files, "types": (one, other)}
    assert fb.scan(folder, columns=["y"]).num_rows == 2


NARROW_AND_WIDE: list[tuple[str, list[Any], str, list[Any], list[Any]]] = [
    ("int8", [-3, None, 100], "int64", [2**60, -(2**60), 100], [100, 127.5, 2**60]),
    ("uint32", [0, 2**32 - 1, None], "int64", [-1, 2**40, 5], [-1, 2**32 - 1, 4.5]),
    ("float", [0.1, None, 3.0], "double", [0.1, float("nan"), -3.0], [0.1, float(np.float32(0.1)), 3, 0]),
    ("null", [None, None, None], "int16", [1, None, 3], [1, 2]),
    (
        "decimal128(5, 2)",
        [Decimal("1.25"), None, Decimal(-1)],
        "decimal128(30, 2)",
        [Decimal(2**70), None, 1],
        [1.25, 0],
    ),
]


@pytest.mark.parametrize(
    ("narrow", "first", "wide", "last", "bounds"), NARROW_AND_WIDE, ids=lambda value: str(value)[:9]
)
def test_filters_prune_row_groups_of_narrower_files_exactly(
    write_table: Write, narrow: str, first: list[Any], wide: str, last: list[Any], bounds: list[Any]
) -> None:
    write_table("a.parquet", {"x": array_of(narrow, first), "i": [0, 1, 2]}, 1)
    last = [*last, None]
    folder = write_table("b.parquet", {"x": array_of(wide, last), "i": range(3, 3 + len(last))}, 1).parent
    values = [*array_of(narrow, first).to_pylist(), *array_of(wide, last).to_pylist()]
    for bound, text in itertools.product(bounds, ("x == {}", "not x < {}", "x < {}")):
        where = text.format(bound)
        kept = [i for i, x in enumerate(values) if x is not None and eval(where, {"x": x})]
        # The last row is always kept: no filter leaves none.
        assert values_of(fb.scan(folder, where=f"{where} or i == 6"), "i") == [*kept, 6], where


def test_blocks_of_files_with_the_common_type_are_found_again(write_table: Write, cache: fb.DiskCache) -> None:
    folder = write_table("a.parquet", {"s": ["a", "b"]}).parent
    transform = fb.Transform(s=fb.Categorical("s", buckets=50))

    def epoch() -> tuple[list[int], int]:
        with fb.Loader(fb.build_plan(fb.scan(folder), lanes=1), transform, cache, global_batch=1) as loader:
            ids = sorted(int(batch["s"][0, 0]) for batch in loader)
            return ids, int(loader.counters["hits"])

    before, _ = epoch()
    write_table("0.parquet", {"s": array_of("string_view", ["b", "a"])})
    after, hits = epoch()
    assert (after, hits) == (sorted(before * 2), 1)


def test_a_map_with_keys_of_type_null_is_read_as_arrow_reads_it(write_table: Write) -> None:
    """pyarrow builds no such type (ValueError), and its reader accepts one: a fuzzed file of arrow-testing has it."""
    maps = pa.array([[], None], pa.map_(pa.string(), pa.int64()))
    path = write_table("a.parquet", {"m": maps, "x": [1, 2]})
    content = bytearray(path.read_bytes())
    key = content.find(b"\x03key\x25\x00")  # its element in the schema, with the old type UTF8
    content[content.find(b"\x1c\x00\x00", key)] = 0xBC  # the logical type: field 1 (string) becomes field 11 (null)
    path.write_bytes(content)
    manifest = fb.scan(path, where="x > 0 and m is not None")
    assert "map<null" in str(manifest.fields[0].type)
    assert values_of(manifest, "m") == [[]]
    fb.Transform(x=fb.Label("x")).check(manifest)


TEXTS = [*HINTS[0][0], *HINTS[1][0], "fixed_size_binary[2]"]
WORDS = ["t1", "t0", "t2", "t1", "t0", "t1"]


def _text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _batch(folder: Path, feature: Any) -> list[Any]:
    with fb.Loader(fb.build_plan(fb.scan(folder), lanes=1), fb.Transform(x=feature), global_batch=6) as loader:
        return [np.asarray(batch["x"]).tolist() for batch in loader]


def _prepared(folder: Path) -> list[Any]:
    prepared = fb.prepare(
        lambda: [pq.read_table(folder / "a.parquet")], into=str(folder.parent / "p"), key="x", inputs=[], version="1"
    )
    return [_text_of(value) for value in values_of(prepared.manifest)]


CONSUMERS: dict[str, Callable[[Path], object]] = {
    "filter": lambda folder: [_text_of(value) for value in values_of(fb.scan(folder, where="i >= 2"))],
    "null": lambda folder: fb.scan(folder, where="x is not None").num_rows,
    "skip": lambda folder: [_text_of(value) for value in values_of(fb.scan(folder, skip=["a.parquet:0:1"]))],
    "categorical": lambda folder: _batch(folder, fb.Categorical("x", buckets=99)),
    "bytes": lambda folder: _batch(folder, fb.Bytes("x", max_len=4)),
    "vocabulary": lambda folder: [_text_of(each) for each in fb.Vocabulary("x").fit(fb.scan(folder))["x"]],
    "sampled": lambda folder: [
        _text_of(each) for each in fb.Sampled(fb.build_plan(fb.scan(folder)), balance="x").class_rows
    ],
    "stratify": lambda folder: [part.num_rows for part in fb.scan(folder).split(0.4, stratify="x")],
    "keep": lambda folder: [
        _text_of(value) for value in values_of(fb.scan(folder).keep(lambda rows: rows["i"].to_numpy() > 2, version="1"))
    ],
    "series": lambda folder: [
        _text_of(each)
        for each in fb.Sequences(
            fb.scan(folder), entity="x", time="i", past=fb.History(["v"], steps=1)
        ).series.entities.to_pylist()
    ],
    "prepare": _prepared,
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_consumer_takes_every_type_of_text(consumer: str, write_table: Write) -> None:
    found = {}
    for number, kind in enumerate(TEXTS):
        is_bytes = "binary" in kind
        words = array_of(kind, [word.encode() if is_bytes else word for word in WORDS])
        columns = {"x": words, "i": range(6), "v": [0.5] * 6}
        found[kind] = CONSUMERS[consumer](write_table(f"{number}/a.parquet", columns, 2).parent)
    assert list(found.values()) == [found["string"]] * len(found)


LIST_CONSUMERS: dict[str, Callable[[Path], object]] = {
    "padded": lambda folder: _batch(folder, fb.Ragged("x", max_len=3)),
    "fixed": lambda folder: _batch(folder, fb.Array("x", shape=2)),
    "rows": lambda folder: values_of(fb.scan(folder, where="i >= 2")),
    "field": lambda folder: _batch(folder, fb.Ragged("p.x", max_len=3)),
    "items": lambda folder: _batch(folder, fb.Ragged("m.values", max_len=3)),
}


@pytest.mark.parametrize("consumer", LIST_CONSUMERS)
def test_every_consumer_takes_every_kind_of_list(consumer: str, write_table: Write) -> None:
    found = []
    for number, kind in enumerate([*LISTS, "large_list_view<item: int64>"]):
        lists = pa.array([[1, 2], None, [3, 4], None], parse_type(kind))
        maps = pa.array([[("a", 1)], None, [], [("b", 2)]], pa.map_(pa.string_view(), pa.int64()))
        columns = {"x": lists, "p": pa.StructArray.from_arrays([lists], ["x"]), "m": maps, "i": range(4)}
        found.append(LIST_CONSUMERS[consumer](write_table(f"{number}/a.parquet", columns, 2).parent))
    assert found == [found[0]] * len(found)


@pytest.mark.parametrize("kind", HINTS[0][0][1:4])
def test_fields_of_structs_with_hints_are_filtered_and_counted(kind: str, write_table: Write) -> None:
    for name, each in (("a", "string"), ("b", kind)):
        texts = pa.StructArray.from_arrays([array_of(each, ["t", None, "u"])], ["s"])
        folder = write_table(f"{name}.parquet", {"p": texts}).parent
    assert values_of(fb.scan(folder, where="p.s >= 'u'"), "p") == [{"s": "u"}, {"s": "u"}]
    assert [part.num_rows for part in fb.scan(folder).split(0.5, stratify="p.s")] == [3, 3]
    assert fb.Vocabulary("p.s").fit(fb.scan(folder)) == {"p.s": ("t", "u")}
