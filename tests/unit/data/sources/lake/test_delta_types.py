"""Types of Delta Lake tables: what deltalake writes in random histories, and columns that were widened."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.sources.lake.test_tables import in_order, rows_of

import forebay as fb
from forebay.errors import InvalidOption, MixedSchemas

deltalake = pytest.importorskip("deltalake")

EPOCH = datetime.datetime(1970, 1, 1)
COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "n": (pa.int64(), lambda draw: draw.randrange(-9, 9)),
    "f": (pa.float64(), lambda draw: draw.random()),
    "s": (pa.string(), lambda draw: draw.choice(["", "a", "bé"])),
    "d": (pa.date32(), lambda draw: datetime.date(2024, 1, draw.randrange(1, 28))),
    "t": (
        pa.timestamp("us", "UTC"),
        lambda draw: datetime.datetime(2024, 1, 1, draw.randrange(24), tzinfo=datetime.UTC),
    ),
    "l": (pa.list_(pa.float64()), lambda draw: [draw.random() for _ in range(draw.randrange(3))]),
    "w": (pa.list_(pa.string()), lambda draw: [draw.choice(["x", "y"]) for _ in range(draw.randrange(3))]),
    "p": (pa.struct([("a", pa.int32()), ("b", pa.string())]), lambda draw: {"a": draw.randrange(9), "b": "z"}),
    "m": (pa.map_(pa.string(), pa.int64()), lambda draw: [("k", draw.randrange(9))]),
    "y": (pa.binary(), lambda draw: draw.randbytes(2)),
    "c": (pa.decimal128(9, 2), lambda draw: Decimal(draw.randrange(999)).scaleb(-2)),
}


def _rows(draw: random.Random, names: list[str], first: int) -> pa.Table:
    arrays = {"id": pa.array(range(first, first + 6))}
    for name in names:
        kind, make = COLUMNS[name]
        arrays[name] = pa.array([None if draw.random() < 0.2 else make(draw) for _ in range(6)], kind)
    return pa.table(arrays)


def _history(path: Path, seed: int) -> int:
    """Write a random history. Returns its last version."""
    draw = random.Random(seed)
    names = draw.sample([*COLUMNS], draw.randrange(2, 6))
    held = names[:-1]
    parts = ["d"] if "d" in held and draw.random() < 0.5 else None
    deltalake.write_deltalake(path, _rows(draw, held, 0), partition_by=parts)
    for step in range(1, draw.randrange(4, 7)):
        table, first = deltalake.DeltaTable(path), 6 * step
        kind = draw.choice(["append", "append", "column", "update", "delete", "merge", "compact", "z_order"])
        if kind == "column":
            held = names
        if kind in ("append", "column"):
            deltalake.write_deltalake(path, _rows(draw, held, first), mode="append", schema_mode="merge")
        elif kind == "update":
            table.update(updates={"id": "id + 1000"}, predicate=f"id % 3 = {draw.randrange(3)}")
        elif kind == "delete":
            table.delete(f"id % 7 = {draw.randrange(7)}")
        elif kind == "merge":
            rows = _rows(draw, held, first - 3)
            merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        elif kind == "compact":
            table.optimize.compact()
        else:
            table.optimize.z_order(["id"])
    return int(deltalake.DeltaTable(path).version())


def _variations(most: int, few: int) -> list[Any]:
    return [pytest.param(seed, marks=pytest.mark.variation) if seed >= few else seed for seed in range(most)]


@pytest.mark.parametrize("seed", _variations(60, 4))
def test_every_version_of_a_random_history_has_the_rows_of_deltalake(seed: int, tmp_path: Path) -> None:
    for version in range(_history(tmp_path, seed) + 1):
        expected = pa.table(deltalake.DeltaTable(tmp_path, version=version).scan()).to_pylist()
        assert in_order(rows_of(fb.scan(tmp_path, version=version))) == in_order(expected)


def _commit(path: Path, kinds: list[tuple[str, pa.Array]], declared: object) -> None:
    """Write a table of files with columns `x`, and a log that declares another type, as after a widening."""
    log = path / "_delta_log"
    log.mkdir()
    changes = {"delta.typeChanges": [{"fromType": "byte", "toType": "short"}]}
    fields = [{"name": "x", "type": declared, "nullable": True, "metadata": changes}]
    features = {key: ["timestampNtz", "typeWidening"] for key in ("readerFeatures", "writerFeatures")}
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {"id": "1", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    entries: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features},
        {"metaData": metadata | {"partitionColumns": [], "configuration": {}}},
    ]
    for name, array in kinds:
        pq.write_table(pa.table({"x": array}), path / name, use_deprecated_int96_timestamps=name.startswith("int96"))
        size = (path / name).stat().st_size
        add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
        entries.append({"add": add})
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, entries)))


WIDENED: list[tuple[object, list[pa.Array], str, list[Any]]] = [
    ("long", [pa.array([1, None], pa.int8()), pa.array([2], pa.int32())], "int64", [1, None, 2]),
    ("long", [pa.array([1], pa.int32())], "int64", [1]),
    ("double", [pa.array([0.5], pa.float32()), pa.array([3], pa.int32())], "double", [0.5, 3.0]),
    ("decimal(14,4)", [pa.array([Decimal("1.25")], pa.decimal128(6, 2)), pa.array([7], pa.int32())],
     "decimal128(14, 4)", [Decimal("1.25"), Decimal(7)]),
    ("timestamp_ntz", [pa.array([datetime.date(1970, 1, 2)]), pa.array([EPOCH], pa.timestamp("us"))], "timestamp[us]",
     [EPOCH + datetime.timedelta(days=1), EPOCH]),
    ("timestamp", [pa.array([EPOCH], pa.timestamp("us", "UTC")), pa.array([EPOCH], pa.timestamp("ms", "UTC"))],
     "timestamp[us, tz=UTC]", [EPOCH.replace(tzinfo=datetime.UTC)] * 2),
    ({"type": "array", "elementType": "string", "containsNull": True},
     [pa.array([["a"]], pa.list_(pa.string_view())), pa.array([["b"], None], pa.large_list(pa.large_string()))],
     "list<element: string>", [["a"], ["b"], None]),
    ({"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in "ab"]},
     [pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), pa.array([{"b": 2, "a": 3}])],
     "struct<a: int64, b: int64>", [{"a": 1, "b": None}, {"a": 3, "b": 2}]),
    ("string", [pa.array([None], pa.null()), pa.array(["a"]).dictionary_encode()], "string", [None, "a"]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "arrays", "kind", "expected"), WIDENED, ids=lambda value: str(value)[:20])
def test_the_type_of_the_table_counts(
    declared: object, arrays: list[pa.Array], kind: str, expected: list[Any], tmp_path: Path
) -> None:
    _commit(tmp_path, [(f"{number}.parquet", array) for number, array in enumerate(arrays)], declared)
    manifest = fb.scan(tmp_path)
    assert [field.type for field in manifest.fields] == [kind]
    assert [row["x"] for row in rows_of(manifest)] == expected
    assert fb.scan(tmp_path, where="x is not None").num_rows == sum(value is not None for value in expected)


def test_times_of_spark_have_no_zone_in_int96(tmp_path: Path) -> None:
    spark = np.array(["2024-01-01T12:00:00.123456"], "datetime64[ns]")
    _commit(
        tmp_path,
        [("int96.parquet", pa.array(spark)), ("b.parquet", pa.array([EPOCH], pa.timestamp("us", "UTC")))],
        "timestamp",
    )
    assert fb.scan(tmp_path, where="x >= '2024-01-01T12:00:00.123456+00:00'").num_rows == 1


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_filter_compares_times_as_the_table_cuts_them(is_nested: bool, tmp_path: Path) -> None:
    """Statistics of a file of nanoseconds would show that no row is at the microsecond before them."""
    times = [pa.array([1500], pa.timestamp("ns")), pa.array([1500, 900, 2000], pa.timestamp("ns"))]
    declared: object = "timestamp_ntz"
    if is_nested:
        times = [pa.StructArray.from_arrays([array], ["t"]) for array in times]
        field = {"name": "t", "type": declared, "nullable": True, "metadata": {}}
        declared = {"type": "struct", "fields": [field]}
    _commit(tmp_path, [(f"{number}.parquet", array) for number, array in enumerate(times)], declared)
    name = "x.t" if is_nested else "x"
    for op, rows in (("==", 2), ("<=", 3), ("<", 1), (">", 1), ("!=", 2)):
        assert fb.scan(tmp_path, where=f"{name} {op} '1970-01-01T00:00:00.000001'").num_rows == rows


@pytest.mark.parametrize(
    ("declared", "array"),
    [
        ("integer", pa.array([1], pa.int64())),
        ("long", pa.array(["1"])),
        ("double", pa.array([1], pa.int64())),
        ("decimal(9,2)", pa.array([Decimal("1.123")], pa.decimal128(9, 3))),
        ("timestamp", pa.array([EPOCH], pa.timestamp("us"))),
    ],
)
def test_a_file_that_a_table_does_not_read_is_refused_by_name(declared: str, array: pa.Array, tmp_path: Path) -> None:
    _commit(tmp_path, [("a.parquet", array)], declared)
    with pytest.raises(MixedSchemas, match=r"Column 'x' is .* in .*a\.parquet, which is not read as"):
        fb.scan(tmp_path)


def test_types_of_folders_are_not_asked_of_a_table(tmp_path: Path) -> None:
    _commit(tmp_path, [("a.parquet", pa.array([1]))], "long")
    with pytest.raises(InvalidOption, match="the table has types"):
        fb.scan(tmp_path, partition_types={"x": "string"})


def test_digits_of_a_partition_have_the_type_of_the_table(tmp_path: Path) -> None:
    rows = pa.table({"x": [1, 2, 3], "zip": ["007", "7", None], "hour": pa.array([7, None, 8], pa.int16())})
    deltalake.write_deltalake(tmp_path, rows, partition_by=["zip", "hour"])
    assert in_order(rows_of(fb.scan(tmp_path))) == in_order(rows.to_pylist())
