"""A pipe in the place of a file is refused by name: who opens one waits for a writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.sources.lake.iceberg_commits import catalog_at, commit_files, position_file

import forebay as fb
from forebay.errors import InvalidOption, ReadFailed
from forebay.storage.retry import ReadPolicy

ROWS = pa.table({"id": [1, 2]})


def delta(folder: Path) -> Path:
    pytest.importorskip("deltalake").write_deltalake(folder / "t", ROWS)
    return folder / "t"


def log_file(name: str) -> Callable[[Path], tuple[Path, Path]]:
    return lambda folder: (delta(folder), folder / "t/_delta_log" / name)


def delta_data(folder: Path) -> tuple[Path, Path]:
    table = delta(folder)
    return table, next(table.glob("*.parquet"))


def iceberg_metadata(folder: Path) -> tuple[Path, Path]:
    (folder / "metadata").mkdir(parents=True)
    return folder / "metadata/v1.metadata.json", folder / "metadata/v1.metadata.json"


def iceberg_deletes(folder: Path) -> tuple[Path, Path]:
    catalog = catalog_at(folder)
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    deletes = position_file(table, next(iter(table.scan().plan_files())).file, [1])
    commit_files(catalog, "db.t", [deletes])
    metadata = table.refresh().metadata_location.removeprefix("file://")
    return Path(metadata), Path(deletes.file_path.removeprefix("file://"))


def plain(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    return folder / "a.parquet", folder / "a.parquet"


CASES = {
    "plain file": plain,
    "commit": log_file(f"{1:020}.json"),
    "checkpoint": log_file(f"{0:020}.checkpoint.parquet"),
    "last checkpoint": log_file("_last_checkpoint"),
    "data file": delta_data,
    "metadata": iceberg_metadata,
    "delete file": iceberg_deletes,
}


@pytest.mark.parametrize("case", CASES)
def test_a_pipe_is_refused_by_name(case: str, tmp_path: Path) -> None:
    uri, pipe = CASES[case](tmp_path / "folder")
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises((InvalidOption, ReadFailed), match=rf"{pipe.name}.* is .*a pipe or a device"):
        fb.scan(uri, footers=False, policy=ReadPolicy(attempts=1, deadline_s=20))


def test_a_pipe_that_took_the_place_of_a_scanned_file(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    manifest = fb.scan(tmp_path, footers=False).for_copies()
    (tmp_path / "a.parquet").unlink()
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(ReadFailed, match="a pipe or a device"):
        manifest.keep(lambda rows: [True] * len(rows), ["id"])


def test_a_pipe_is_no_manifest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.json")
    with pytest.raises(InvalidOption, match="a pipe or a device"):
        fb.Manifest.load(tmp_path / "m.json")


def test_a_pipe_in_a_table_of_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_at(tmp_path)
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    manifests = Path(table.current_snapshot().manifest_list.removeprefix("file://"))
    manifests.unlink()
    os.mkfifo(manifests)
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda _: catalog)
    with pytest.raises(ReadFailed, match="a pipe or a device"):
        fb.scan("iceberg://lake/db.t", footers=False, policy=ReadPolicy(attempts=1, deadline_s=2))
