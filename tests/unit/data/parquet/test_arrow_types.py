from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.data.parquet.arrow_types import parse_type

FEATURE_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)),
    *(pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(20, 0), pa.decimal128(5, -2), pa.decimal256(50, 3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("ms"), pa.uuid(), pa.json_()),
    *(pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ms", "+02:00")),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.uint8(), pa.int64(), ordered=True)),
    pa.dictionary(pa.int8(), pa.decimal128(10, 2)),
    *(pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.float32(), 3), pa.list_view(pa.int8())),
    *(pa.large_list_view(pa.int8()), pa.list_(pa.timestamp("us", "UTC")), pa.list_(pa.list_(pa.int64()))),
    *(pa.list_(pa.dictionary(pa.int32(), pa.string())), pa.list_(pa.decimal128(10, 2))),
    pa.struct([("a b", pa.int64()), pa.field("c", pa.struct([("d", pa.timestamp("us", "UTC"))]), nullable=False)]),
    pa.struct([("a", pa.list_(pa.struct([("b", pa.decimal128(5, 2))]))), ("m", pa.map_(pa.int8(), pa.string()))]),
    *(pa.map_(pa.string(), pa.list_(pa.int64())), pa.map_(pa.string(), pa.int8(), keys_sorted=True), pa.struct([])),
]


@pytest.mark.parametrize("expected", FEATURE_TYPES, ids=str)
def test_every_type_a_feature_takes_comes_back_from_its_text(expected: pa.DataType) -> None:
    assert parse_type(str(expected)) == expected


@pytest.mark.parametrize("item", [pa.field("element", pa.int64(), nullable=False), pa.field("item", pa.string())])
def test_names_and_nullability_of_list_items_do_not_matter(item: pa.Field) -> None:
    assert parse_type(str(pa.list_(item))).value_type == item.type


def test_structs_and_maps_of_items_of_any_name() -> None:
    item = pa.field("element", pa.int64(), nullable=False)
    plain = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.int8())])
    assert parse_type(str(pa.struct([("a", pa.list_(item)), ("b", pa.int8())]))) == plain
    assert parse_type("map<string ('k'), int64 ('v')>") == pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    "text", [str(pa.struct([("a: b, c", pa.int64())])), "map<int8>", "struct<a>", "extension<my.thing>", "???"]
)
def test_other_types_keep_their_text_for_the_message(text: str) -> None:
    assert text in str(parse_type(text))
