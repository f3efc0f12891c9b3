"""Folders named `key=value` as columns."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.partitions import partition_fields
from forebay.errors import InvalidOption, MixedSchemas, NoFiles

Write = Callable[..., Path]
NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def root(write_table: Write) -> Path:
    for number, (day, site) in enumerate([("2024-01-31", "3"), ("2024-02-01", NULL), (NULL, "-7")]):
        write_table(f"day={day}/site={site}/tag=a%2Fb/a.parquet", {"x": [number * 2, number * 2 + 1]}, 1)
    return write_table(f"day={NULL}/site=5/tag=b/b.parquet", {"x": [6]}).parents[3]


def rows_of(manifest: Manifest, columns: list[str] | None = None) -> list[dict[str, Any]]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index, columns).to_pylist()]


def test_they_are_typed_columns_of_each_row(root: Path, tmp_path: Path) -> None:
    manifest = fb.scan(root)
    types = {field.name: field.type for field in manifest.fields}
    assert types == {"x": "int64", "day": "date32[day]", "site": "int64", "tag": "string"}
    first, late = datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)
    expected = [(0, first, 3, "a/b"), (1, first, 3, "a/b"), (2, late, None, "a/b"), (3, late, None, "a/b")]
    expected += [(4, None, -7, "a/b"), (5, None, -7, "a/b"), (6, None, 5, "b")]
    assert sorted(tuple(row.values()) for row in rows_of(manifest)) == expected
    assert sorted(row["site"] or 0 for row in rows_of(manifest, ["site"])) == [-7, -7, 0, 0, 3, 3, 5]
    for name in ("m.json", "m.parquet"):
        manifest.save(tmp_path / name)
        again = fb.Manifest.load(tmp_path / name)
        assert (again, rows_of(again)) == (manifest, rows_of(manifest))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("site == 3", [0, 1]),
        ("site is None", [2, 3]),
        ("day >= '2024-02-01' or x == 6", [2, 3, 6]),
        ("tag == 'a/b' and day is None and x != 4", [5]),
    ],
)
def test_filters_use_them(root: Path, where: str, expected: list[int]) -> None:
    assert [row["x"] for row in rows_of(fb.scan(root, columns=["x"], where=where))] == expected


def test_no_bytes_are_read_for_them(root: Path) -> None:
    manifest = fb.scan(root, columns=["site", "day"], where="site != 3")
    assert (manifest.num_rows, int(manifest.bytes.sum())) == (3, 0)
    with pytest.raises(NoFiles, match="keeps none of 7 rows"):
        fb.scan(root, where="site == 99")


def test_they_feed_a_transform_and_name_its_blocks(root: Path, write_table: Write, tmp_path: Path) -> None:
    transform = fb.Transform(x=fb.Label("x", dtype="int64"), tag=fb.Categorical("tag", buckets=1000))
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)

    def epoch(uri: Path) -> tuple[dict[int, int], int]:
        with fb.Loader(fb.build_plan(fb.scan(uri), lanes=2), transform, cache, global_batch=3) as loader:
            pairs = {
                x: tag
                for batch in loader
                for x, tag in zip(batch["x"].tolist(), batch["tag"][:, 0].tolist(), strict=True)
            }
            return pairs, int(loader.counters["hits"])

    found, hits = epoch(root)
    assert (len(found), len(set(found.values())), hits) == (7, 2, 0)
    # Another type of a column that the transform does not use keeps the blocks.
    write_table(f"day={NULL}/site=none/tag=b/c.parquet", {"x": [7]})
    again, hits = epoch(root)
    assert (again | {7: 0}, hits) == (found | {7: 0}, 7)


def test_a_column_that_is_also_in_the_files_is_refused(root: Path, write_table: Write) -> None:
    write_table(f"day={NULL}/site=5/tag=b/b.parquet", {"x": [6], "site": [5]})
    with pytest.raises(InvalidOption, match="partitions=False"):
        fb.scan(root)
    with pytest.raises(InvalidOption, match="partitions=False"):
        fb.scan(root, columns=["x"], where="site == 5")
    assert fb.scan(root, columns=["x", "day"]).num_rows == 7
    assert fb.scan(root, columns=["x"], partitions=False).columns == ("x",)
    write_table("c.parquet", {"x": [9]})
    with pytest.raises(MixedSchemas, match="'day'.*absent"):
        fb.scan(root, columns=["x", "day"])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-2", None], "int64"),
        (["1", "2024-01-31"], "string"),
        (["9223372036854775808"], "string"),
        (["2024-02-30"], "string"),
        (["2024-02-29", None], "date32[day]"),
        ([None], "string"),
        (["1.5", ""], "string"),
        (["\u0661"], "string"),
        *((["1", text], "string") for text in ("007", "+1", "-0", "1_000", " 1", "-01", "00", "1e3", "0x1")),
        (["0", "-1", "9223372036854775807", "-9223372036854775808"], "int64"),
    ],
)
def test_the_type_holds_all_values_as_they_are_written(texts: list[str | None], expected: str) -> None:
    fields = partition_fields([(("key", text),) for text in texts])
    assert [(field.name, field.type) for field in fields] == [("key", expected)]


def values_of(root: Path, **options: Any) -> list[Any]:
    return sorted((row["x"], row["zip"]) for row in rows_of(fb.scan(root, **options)))


def test_digits_stay_text_in_all_files_where_one_has_a_leading_zero(write_table: Write) -> None:
    for number, text in enumerate(["123", "007", NULL]):
        root = write_table(f"zip={text}/a.parquet", {"x": [number]}).parents[1]
    assert values_of(root) == [(0, "123"), (1, "007"), (2, None)]
    assert [row["x"] for row in rows_of(fb.scan(root, where="zip == '007'"))] == [1]
    assert values_of(root, partition_types={"zip": "int32"}) == [(0, 123), (1, 7), (2, None)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("string", ["1", "20"]), ("float64", [1.0, 20.0]), ("uint64", [1, 20]), ("large_string", ["1", "20"])],
)
def test_a_type_that_is_asked_for(write_table: Write, asked: str, expected: list[Any]) -> None:
    for text in ("1", "20"):
        root = write_table(f"zip={text}/a.parquet", {"x": [int(text)]}).parents[1]
    assert [value for _, value in values_of(root, partition_types={"zip": asked})] == expected


@pytest.mark.parametrize(
    ("types", "options", "message"),
    [
        ({"zip": "int8"}, {}, "does not hold the value of a folder zip=300"),
        ({"zip": "number"}, {}, "is no type"),
        ({"zap": "string"}, {}, "names 'zap'.*'zip'"),
        ({"zip": "string"}, {"partitions": False}, "partitions=False"),
        ("string", {}, "types by column"),
    ],
)
def test_types_that_cannot_be_had(write_table: Write, types: Any, options: dict[str, Any], message: str) -> None:
    root = write_table("zip=300/a.parquet", {"x": [1]}).parents[1]
    with pytest.raises(InvalidOption, match=message):
        fb.scan(root, partition_types=types, **options)
