"""Laws of lake tables in every format: the rows equal the table's own reader's, at every version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidOption, MissingPackage, NotPlainParquet


def rows_of(manifest: Manifest) -> list[dict[str, Any]]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index).to_pylist()]


def in_order(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(f"{name}={row[name]!r}" for name in sorted(row)) for row in rows)


def test_every_version_has_the_rows_of_its_own_reader(table: Any) -> None:
    for version in table.versions:
        manifest, expected = fb.scan(table.uri, version=version), table.rows(version)
        assert in_order(rows_of(manifest)) == in_order(expected)
        assert (manifest.num_rows, manifest.snapshot) == (len(expected), f"{table.snapshot} {version}")
    assert fb.scan(table.uri) == manifest
    assert manifest.kept is not None and manifest.kept.deleted_rows == 2


def test_each_live_row_comes_once_an_epoch_with_its_partitions_and_a_filter(table: Any, tmp_path: Path) -> None:
    manifest = fb.scan(table.uri, where="day == '2024-01-01' and id != 40 and (price is None or tags is not None)")
    expected = sorted(row["id"] for row in table.rows(table.versions[-1]) if row["id"] != 40)
    plan = fb.build_plan(manifest, lanes=4)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), site=fb.Categorical("site", buckets=100))
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    for size in (1, 3):
        found = []
        for rank in range(size):
            with fb.Loader(plan, transform, cache, global_batch=4, world=fb.World(rank=rank, size=size)) as loader:
                found += [number for batch in loader if batch.weight for number in batch["id"].tolist()]
        assert sorted(found) == expected


def test_a_saved_manifest_reads_the_same_rows(table: Any, tmp_path: Path) -> None:
    manifest = fb.scan(table.uri, where="site == 'x=y' and id < 33")
    assert {row["site"] for row in rows_of(manifest)} == {"x=y"}
    expected = [row for row in table.rows(table.versions[-1]) if row["site"] == "x=y" and row["id"] < 33]
    assert manifest.num_rows == len(expected)
    for name in ("m.parquet", "m.json"):
        manifest.save(tmp_path / name)
        again = fb.Manifest.load(tmp_path / name)
        assert (again, rows_of(again), again.snapshot) == (manifest, rows_of(manifest), manifest.snapshot)


def test_versions_that_are_gone(table: Any) -> None:
    with pytest.raises(InvalidOption, match=table.gone):
        fb.scan(table.uri, version=77)
    for version in (True, "1"):
        with pytest.raises(InvalidOption, match="version="):
            fb.scan(table.uri, version=version)  # type: ignore[arg-type]
    pinned = fb.scan(table.uri, version=table.versions[1])
    Path(pinned[0].uri).unlink()
    with pytest.raises(InvalidOption, match="is gone: the table was cleaned up"):
        fb.scan(table.uri, version=table.versions[1])
    with pytest.raises(fb.ForebayError, match="no longer exists"):
        rows_of(pinned)


def test_parts_of_a_table_are_refused(table: Any) -> None:
    with pytest.raises(NotPlainParquet):
        fb.scan([table.folder])
    with pytest.raises(NotPlainParquet):
        fb.scan(next(table.folder.glob("**/site=*")))


def test_a_version_of_plain_files(parquet_folder: Callable[..., Path]) -> None:
    with pytest.raises(InvalidOption, match="no Delta Lake or Iceberg table"):
        fb.scan(parquet_folder({"a.parquet": [3]}), version=3)


def test_the_missing_package_is_named(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == table.package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=rf"pip install 'forebay\[{table.snapshot}\]'"):
        fb.scan(table.uri)
