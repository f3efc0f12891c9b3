"""Iceberg tables: what only they have. Their laws are in `test_tables.py`."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.sources.lake.iceberg_commits import (
    catalog_at,
    commit_files,
    delete_file,
    equality_file,
    position_file,
)

import forebay as fb
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidOption, NoFiles

types = pytest.importorskip("pyiceberg.types")


def rows_of(manifest: Manifest) -> list[dict[str, Any]]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index).to_pylist()]


def test_columns_are_found_by_field_id(tmp_path: Path) -> None:
    """Two columns swap their names, one is dropped and another one gets its name, types are widened."""
    catalog = catalog_at(tmp_path)
    first = {"a": pa.array([1, 2], pa.int32()), "b": pa.array([10, 20], pa.int32()), "old": ["x", "y"]}
    first |= {"s": [{"u": 1, "v": "p"}, None], "f": pa.array([0.5, None], pa.float32())}
    table = catalog.create_table("db.t", pa.table(first).schema)
    table.append(pa.table(first))
    with table.update_schema() as schema:
        schema.rename_column("a", "c").delete_column("old")
    with table.update_schema() as schema:
        schema.rename_column("b", "a").add_column("old", types.LongType()).add_column(("s", "w"), types.LongType())
        schema.update_column("f", types.DoubleType()).update_column("c", types.LongType())
    with table.update_schema() as schema:
        schema.rename_column("c", "b")
    table.append(pa.table(first | {"old": [7, 8], "a": first["b"], "b": [3, 4], "s": [{"u": 1, "v": "p", "w": 5}] * 2}))
    for where in (None, "a == 10", "b < 3", "old is None", "b == 4 and f is None"):
        manifest = fb.scan(table.metadata_location, where=where)
        assert {field.name: field.type for field in manifest.fields} == {
            "a": "int32",
            "b": "int64",
            "f": "double",
            "old": "int64",
            "s": "struct<u: int64, v: string, w: int64>",
        }
        rows = table.scan().to_arrow().to_pylist()
        kept = {"a == 10": lambda row: row["a"] == 10, "b < 3": lambda row: row["b"] < 3}
        kept |= {"old is None": lambda row: row["old"] is None, None: lambda row: True}
        keep = kept.get(where, lambda row: row["b"] == 4)
        assert sorted(map(str, rows_of(manifest))) == sorted(
            str({k: row[k] for k in manifest.columns}) for row in rows if keep(row)
        )
    assert rows_of(fb.scan(table.metadata_location, columns=["b"], where="old == 7")) == [{"b": 3}]
    of_fields = {"s.w == 5": [3, 4], "s.w is None": [1, 2], "s.u == 1": [1, 3, 4], "f is None and s.w is None": [2]}
    for where, kept_b in of_fields.items():
        found = fb.scan(table.metadata_location, columns=["b"], where=where)
        assert sorted(row["b"] for row in rows_of(found)) == kept_b
    reader = RowGroupReader(fb.scan(table.metadata_location, columns=["s"]))
    values = [row["s"] and row["s"]["w"] for index in range(2) for row in reader.read(index, ["s.w"]).to_pylist()]
    assert sorted(map(str, values)) == ["5", "5", "None", "None"]


def test_blocks_of_files_under_another_name_are_others(tmp_path: Path) -> None:
    catalog = catalog_at(tmp_path)
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}))
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    found, ids = [], []
    for names in ((), (("a", "c"), ("b", "a"))):
        for name in names:
            with table.update_schema() as schema:
                schema.rename_column(*name)
        manifest = fb.scan(table.metadata_location, columns=["a"])
        ids.append(manifest.id)
        with fb.Loader(fb.build_plan(manifest), fb.Transform(a=fb.Label("a")), cache, global_batch=3) as loader:
            found += [sorted(batch["a"].tolist()) for batch in loader]
    assert found == [[1, 2, 3], [4, 5, 6]]
    assert ids[0] != ids[1]


def test_renamed_fields_of_structs_are_refused_if_they_are_selected(tmp_path: Path) -> None:
    catalog = catalog_at(tmp_path)
    rows = pa.table({"s": [{"a": 1, "b": 2}], "x": [1]})
    table = catalog.create_table("db.t", rows.schema)
    table.append(rows)
    with table.update_schema() as schema:
        schema.rename_column("s.a", "c")
    with pytest.raises(InvalidOption, match=r"has the field 'a', which the table has renamed.*columns=\[") as caught:
        fb.scan(table.metadata_location)
    assert caught.value.facts["column"] == "s"
    assert rows_of(fb.scan(table.metadata_location, columns=["x"])) == [{"x": 1}]


def file_of(table: Any, content: pa.Table) -> str:
    """File without field ids, in the folder of the table."""
    uri = f"{table.location()}/data/own.parquet"
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path)
    return uri


def test_a_file_without_ids_in_a_table_without_names_is_refused(tmp_path: Path) -> None:
    content = pa.table({"a": [1, 2], "b": ["x", "y"]})
    table = catalog_at(tmp_path).create_table("db.t", content.schema)
    table.add_files([file_of(table, content)])
    assert rows_of(fb.scan(table.metadata_location)) == content.to_pylist()
    with table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(InvalidOption, match=r"own\.parquet has no field ids.*schema\.name-mapping\.default"):
        fb.scan(table.metadata_location)


def test_a_file_that_a_table_has_twice_is_refused(tmp_path: Path) -> None:
    content = pa.table({"a": [1, 2]})
    table = catalog_at(tmp_path).create_table("db.t", content.schema)
    uri = file_of(table, content)
    for _ in range(2):
        table.add_files([uri], check_duplicate_files=False)
    with pytest.raises(InvalidOption, match=r"names 1 files more than once, such as .*own\.parquet"):
        fb.scan(table.metadata_location)


@pytest.mark.parametrize("value", [b"a", b"\xff", "\u00e9".encode()], ids=str)
def test_a_partition_of_bytes_is_exact_or_refused(tmp_path: Path, value: bytes) -> None:
    content = pa.table({"a": [1, 2], "key": pa.array([value, value], pa.binary())})
    table = catalog_at(tmp_path).create_table("db.t", content.schema)
    with table.update_spec() as spec:
        spec.add_identity("key")
    table.append(content)
    (task,) = table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    pq.write_table(pq.read_table(path, partitioning=None).select(["a"]), path)
    if value == b"\xff":
        with pytest.raises(InvalidOption, match=r"does not hold the column 'key'"):
            fb.scan(table.metadata_location)
    else:
        assert rows_of(fb.scan(table.metadata_location)) == content.to_pylist()


def test_files_of_others_have_no_ids_no_partition_columns_and_defaults(tmp_path: Path) -> None:
    """`add_files` maps columns by name, a partition column comes from the metadata, a new column has its default."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    catalog = catalog_at(tmp_path)
    schema = pa.schema([("a", pa.int64()), ("day", pa.date32())])
    table = catalog.create_table("db.t", schema, properties={"format-version": "2"})
    with table.update_spec() as spec:
        spec.add_identity("day")
    mapping = '[{"field-id": 1, "names": ["a", "before"]}, {"field-id": 2, "names": ["day"]}]'
    table.transaction().set_properties({"schema.name-mapping.default": mapping}).commit_transaction()
    files = []
    for number, name in enumerate(("a", "before")):
        path = f"{table.location()}/{name}.parquet"
        pq.write_table(pa.table({name: pa.array([number], pa.int32())}), path.removeprefix("file://"))
        files.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=path,
                file_format=FileFormat.PARQUET,
                partition=Record(19723 + number),
                record_count=1,
                file_size_in_bytes=1,
            )
        )
        files[-1].spec_id = table.spec().spec_id
    commit_files(catalog, "db.t", files, are_deletes=False)
    table = table.refresh()
    manifest = fb.scan(table.metadata_location)
    expected = table.scan().to_arrow().to_pylist()
    assert sorted(map(str, rows_of(manifest))) == sorted(map(str, expected))
    assert str(expected[0]["day"]).startswith("2024-01-0")


@pytest.mark.parametrize("kind", ["equality", "ORC", "torn"])
def test_deletes_that_cannot_be_read_name_the_way_out(tmp_path: Path, kind: str) -> None:
    catalog = catalog_at(tmp_path)
    rows = pa.table({"a": [1, 2]})
    table = catalog.create_table("db.t", rows.schema)
    table.append(rows)
    data = next(iter(table.scan().plan_files())).file
    torn = f"{table.location()}/data/torn.puffin"
    Path(torn.removeprefix("file://")).write_bytes(b"PFA1 torn")
    deletes = {
        "equality": (equality_file(table, data), "equality deletes"),
        "ORC": (delete_file(data, f"{table.location()}/x.orc", "ORC", 1), "delete file of unknown kind ORC"),
        "torn": (delete_file(data, torn, "PUFFIN", 1), "torn.puffin .* cannot be read"),
    }
    file, text = deletes[kind]
    commit_files(catalog, "db.t", [file])
    with pytest.raises(InvalidOption, match=rf"{text}.*rewrite_data_files"):
        fb.scan(table.refresh().metadata_location)
    assert fb.scan(table.metadata_location, version=table.snapshots()[0].snapshot_id).num_rows == 2


def test_tables_are_named_by_catalog_by_metadata_file_or_by_a_folder_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.utils.config import Config

    catalog = catalog_at(tmp_path)
    rows = pa.table({"a": [1, 2]})
    table = catalog.create_table("db.t", rows.schema)
    table.append(rows)
    expected = fb.scan(table.metadata_location)
    folder = Path(table.location().removeprefix("file://"))
    metadata = table.metadata_location.removeprefix("file://")
    assert fb.scan(Path(metadata)) == expected
    with pytest.raises(InvalidOption, match=rf"Name the table by its catalog.*{Path(metadata).name}"):
        fb.scan(folder)
    (folder / "metadata/version-hint.text").write_text(Path(metadata).name.removesuffix(".metadata.json"))
    assert fb.scan(folder) == expected
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read once, when it is imported
    assert fb.scan("iceberg://lake/db.t") == expected
    for wrong, text in (
        ("iceberg://lake/db.absent", "db.absent cannot be opened .*NoSuchTable.*Check its name"),
        ("iceberg://nowhere/db.t", "nowhere/db.t cannot be opened"),
        ("iceberg://lake", "iceberg://CATALOG/NAMESPACE.TABLE"),
        (f"{tmp_path}/v1.metadata.json", "cannot be opened"),
    ):
        with pytest.raises(InvalidOption, match=text):
            fb.scan(wrong)


def test_a_table_without_rows_and_one_of_other_formats(tmp_path: Path) -> None:
    catalog = catalog_at(tmp_path)
    schema = pa.schema([("a", pa.int64())])
    empty = catalog.create_table("db.empty", schema)
    with pytest.raises(NoFiles, match="has no row"):
        fb.scan(empty.metadata_location)
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.typedef import Record

    nowhere = SimpleNamespace(partition=Record(), spec_id=0)
    avro = delete_file(nowhere, f"{empty.location()}/a.avro", "AVRO", 1, content=DataFileContent.DATA)
    commit_files(catalog, "db.empty", [avro], are_deletes=False)
    with pytest.raises(InvalidOption, match="files of format AVRO.*write.format.default=parquet"):
        fb.scan(empty.refresh().metadata_location)


def test_files_outside_the_folder_of_the_table(tmp_path: Path) -> None:
    catalog = catalog_at(tmp_path)
    rows = pa.table({"a": [1, 2]})
    table = catalog.create_table("db.t", rows.schema, properties={"write.data.path": f"file://{tmp_path}/far away"})
    table.append(rows)
    with pytest.raises(InvalidOption, match=r"not below.*allow_locations=\['file://.*/far away'\]"):
        fb.scan(table.metadata_location)
    for allowed in (tmp_path / "far away", f"file://{tmp_path}/far away", [str(tmp_path)]):
        manifest = fb.scan(table.metadata_location, allow_locations=allowed)
        assert manifest.root == "" and "far away" in manifest[0].uri
        assert rows_of(manifest) == rows.to_pylist()


@pytest.mark.parametrize("named", ["metadata file", "catalog", "REST catalog"])
def test_properties_of_a_table_are_no_settings_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """pyiceberg imports and calls `py-io-impl`, and sends requests to `s3.endpoint`."""
    from pyiceberg.utils.config import Config

    catalog = catalog_at(tmp_path)
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1, 2]}))
    path = Path(table.metadata_location.removeprefix("file://"))
    facts = json.loads(path.read_text())
    mark = tmp_path / "mark"
    # `subprocess.Popen` takes the names of the properties for a command.
    facts["properties"] = {"/bin/touch": "", str(mark): "", "py-io-impl": "subprocess.Popen", "s3.endpoint": "http://h"}
    path.write_text(json.dumps(facts))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest" if named == "REST catalog" else "sql")
    answers: dict[str, Any] = {
        "/v1/config": {"defaults": {}, "overrides": {}},
        "/v1/namespaces/db/tables/t": {
            "metadata-location": table.metadata_location,
            "metadata": facts,
            "config": {"s3.endpoint": "http://h", "s3.region": "r"},
        },
    }
    with answering(answers) as address:
        uri = address if named == "REST catalog" else f"sqlite:///{tmp_path}/catalog.db"
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        found = fb.scan(table.metadata_location if named == "metadata file" else "iceberg://lake/db.t")
        assert rows_of(found) == [{"a": 1}, {"a": 2}]
        if named != "metadata file":
            from pyiceberg.catalog import load_catalog

            from forebay.data.sources.iceberg_io import table_of_catalog

            settings = table_of_catalog(load_catalog("lake"), "db.t").io.properties
            kept = {name for name in settings if name.startswith(("s3", "py", "/"))}
            assert kept == ({"s3.endpoint", "s3.region"} if named == "REST catalog" else set())
    assert not mark.exists()


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """Serve JSON documents by path."""

    class JsonAnswers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(answers[self.path.partition("?")[0]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), JsonAnswers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (gzip.compress(b" " * 5000), "more than 1,000 bytes, decompressed"),
        (b"no gzip", "Not a gzipped file"),
        (gzip.compress(b"{}")[:-3], "ended before"),
    ],
)
def test_compressed_metadata_is_read_within_a_limit(
    content: bytes, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.data.sources.iceberg_io.LARGEST_BYTES", 1000)
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/v1.gz.metadata.json").write_bytes(content)
    with pytest.raises(InvalidOption, match=error):
        fb.scan(tmp_path / "metadata/v1.gz.metadata.json", footers=False)


def test_compressed_metadata_is_read(tmp_path: Path) -> None:
    table = catalog_at(tmp_path).create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    compressed = metadata.with_name("v9.gz.metadata.json")
    compressed.write_bytes(gzip.compress(metadata.read_bytes()))
    assert [row["id"] for row in rows_of(fb.scan(compressed, footers=False))] == [1, 2]


def test_a_damaged_delete_file_is_no_failure_of_storage(tmp_path: Path) -> None:
    catalog = catalog_at(tmp_path)
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    deletes = position_file(table, next(iter(table.scan().plan_files())).file, [1])
    commit_files(catalog, "db.t", [deletes])
    path = Path(deletes.file_path.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[-100:-50] = b"\xff" * 50
    path.write_bytes(content)
    with pytest.raises(InvalidOption, match=rf"{path.name} .*cannot be read"):
        fb.scan(table.refresh().metadata_location, footers=False)


def test_a_type_that_arrow_does_not_have(tmp_path: Path) -> None:
    table = catalog_at(tmp_path).create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    metadata.write_text(metadata.read_text().replace('"type":"long"', '"type":"fixed[99999999999]"'))
    with pytest.raises(InvalidOption, match="cannot be read .*Choose another snapshot"):
        fb.scan(metadata, footers=False)
