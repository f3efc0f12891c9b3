"""Delta Lake tables: the rows are those of the table's own reader, at every version."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay as fb
from forebay.errors import InvalidOption, MissingPackage, NoFiles, NotPlainParquet
from forebay.manifest.manifest import Manifest
from forebay.manifest.reading import RowGroupReader

deltalake = pytest.importorskip("deltalake")

Delete = Callable[..., None]


def rows_of(manifest: Manifest) -> list[dict[str, Any]]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index).to_pylist()]


def oracle(table: Path, version: int | None = None) -> list[dict[str, Any]]:
    return pa.table(deltalake.DeltaTable(table, version=version).scan()).to_pylist()  # type: ignore[no-any-return]


def in_order(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(f"{name}={row[name]!r}" for name in sorted(row)) for row in rows)


@pytest.fixture
def table(tmp_path: Path, delete_rows: Delete) -> Path:
    """Appended, deleted from, compacted, widened by a column, overwritten in a part, and with deletion vectors."""
    path = tmp_path / "my table"
    site = ["a b", "é", None, "x=y"]
    rows = pa.table({"id": range(16), "site": site * 4, "day": [datetime.date(2024, 1, 1)] * 16})
    write = deltalake.write_deltalake
    write(path, rows, partition_by=["site", "day"])
    write(path, rows.set_column(0, "id", pa.array(range(16, 32))), mode="append")
    deltalake.DeltaTable(path).delete("id % 5 = 0")
    deltalake.DeltaTable(path).optimize.compact()
    more = rows.set_column(0, "id", pa.array(range(32, 48))).append_column("price", pa.array([1.5] * 16))
    write(path, more.append_column("tags", pa.array([[1, 2]] * 16)), mode="append", schema_mode="merge")
    delete_rows(path, -1, [0, 2], version=5)
    return path


def test_every_version_has_the_rows_of_its_own_reader(table: Path) -> None:
    for version in range(6):
        manifest = fb.scan(table, version=version)
        assert in_order(rows_of(manifest)) == in_order(oracle(table, version))
        assert (manifest.num_rows, manifest.snapshot) == (len(oracle(table, version)), f"delta {version}")
    assert fb.scan(table) == manifest
    assert manifest.kept is not None and manifest.kept.deleted_rows == 2


def test_each_live_row_comes_once_an_epoch_with_its_partitions_and_a_filter(table: Path, tmp_path: Path) -> None:
    manifest = fb.scan(str(table), where="day == '2024-01-01' and id != 40 and (price is None or tags is not None)")
    expected = sorted(row["id"] for row in oracle(table) if row["id"] != 40)
    plan = fb.build_plan(manifest, lanes=4)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), site=fb.Categorical("site", buckets=100))
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    for size in (1, 3):
        found = []
        for rank in range(size):
            with fb.Loader(plan, transform, cache, global_batch=4, world=fb.World(rank=rank, size=size)) as loader:
                found += [number for batch in loader if batch.weight for number in batch["id"].tolist()]
        assert sorted(found) == expected


def test_partitions_cost_no_bytes_and_prune(table: Path) -> None:
    manifest = fb.scan(table, columns=["day", "site"], where="site == 'x=y'")
    assert {row["site"] for row in rows_of(manifest)} == {"x=y"}
    assert manifest.num_rows == sum(row["site"] == "x=y" for row in oracle(table))
    assert manifest.source_bytes.sum() == 0
    saved = table.parent / "m.parquet"
    fb.save_manifest(manifest, saved)
    again = fb.load_manifest(saved)
    assert (again, rows_of(again), again.snapshot) == (manifest, rows_of(manifest), "delta 5")


def test_versions_that_are_gone(table: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be opened at version 77"):
        fb.scan(table, version=77)
    for version in (-1, True, "1"):
        with pytest.raises(InvalidOption, match="number of a version"):
            fb.scan(table, version=version)  # type: ignore[arg-type]
    pinned = fb.scan(table, version=1)
    Path(pinned[0].uri).unlink()
    with pytest.raises(InvalidOption, match="is gone: the table was cleaned up"):
        fb.scan(table, version=1)
    with pytest.raises(fb.ForebayError, match="no longer exists"):
        rows_of(pinned)


def test_an_unknown_kind_of_deletion_vector(table: Path, delete_rows: Delete) -> None:
    delete_rows(table, -1, [0, 2], version=6, kind="q")
    with pytest.raises(InvalidOption, match="OPTIMIZE") as caught:
        fb.scan(table)
    assert len(str(caught.value)) < 1000


def test_mapped_columns_and_parts_of_a_table_are_refused(table: Path, tmp_path: Path) -> None:
    with pytest.raises(NotPlainParquet):
        fb.scan([table])
    with pytest.raises(NotPlainParquet):
        fb.scan(next(table.glob("site=*")))
    log = table / "_delta_log" / f"{6:020}.json"
    commits = [line for commit in sorted(log.parent.glob("*.json")) for line in commit.read_text().splitlines()]
    metadata = [json.loads(line) for line in commits if '"metaData"' in line][-1]
    metadata["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    log.write_text(json.dumps(metadata))
    with pytest.raises(InvalidOption, match="map|Mapping"):
        fb.scan(table)


def test_a_table_without_rows_and_a_version_of_plain_files(tmp_path: Path, parquet_folder: Callable[..., Path]) -> None:
    schema = pa.schema({"id": pa.int64()})
    deltalake.write_deltalake(tmp_path / "empty", schema.empty_table())
    with pytest.raises(NoFiles):
        fb.scan(tmp_path / "empty")
    with pytest.raises(InvalidOption, match="no Delta Lake table"):
        fb.scan(parquet_folder({"a.parquet": [3]}), version=3)


def test_the_missing_package_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingPackage, match=r"pip install 'forebay\[delta\]'"):
        fb.scan(table)
