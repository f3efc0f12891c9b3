"""Iceberg tables of a SQLite catalog, and deletions as other engines write them, which pyiceberg reads alone."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def catalog_at(folder: Path) -> Any:
    pytest.importorskip("sqlalchemy")
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    folder.mkdir(parents=True, exist_ok=True)
    catalog = sql.SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/my lake")
    catalog.create_namespace_if_not_exists("db")
    return catalog


def position_file(table: Any, data: Any, rows: Sequence[int]) -> Any:
    """Delete file of format Parquet for rows of one data file."""
    path = f"{table.location()}/data/{time.monotonic_ns()}-deletes.parquet"
    content = pa.table({"file_path": [data.file_path] * len(rows), "pos": pa.array(rows, pa.int64())})
    pq.write_table(content, path.removeprefix("file://"))
    return delete_file(data, path, "PARQUET", len(rows))


def vector_file(table: Any, data: Any, rows: Sequence[int]) -> Any:
    """Delete file of format Puffin with one deletion vector (Iceberg's spec of Puffin)."""
    from pyroaring import BitMap

    bitmaps = struct.pack("<QI", 1, 0) + BitMap(rows).serialize()
    vector = b"\xd1\xd3\x39\x64" + bitmaps
    blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    facts = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 4}
    facts |= {"length": len(blob), "properties": {"referenced-data-file": data.file_path, "cardinality": "1"}}
    footer = json.dumps({"blobs": [facts]}).encode()
    path = f"{table.location()}/data/{time.monotonic_ns()}.puffin"
    content = b"PFA1" + blob + b"PFA1" + footer + struct.pack("<I", len(footer)) + bytes(4) + b"PFA1"
    Path(path.removeprefix("file://")).write_bytes(content)
    return delete_file(data, path, "PUFFIN", len(rows))


def equality_file(table: Any, data: Any) -> Any:
    """Delete file of the rows whose first column has a value of the file."""
    from pyiceberg.manifest import DataFileContent

    path = f"{table.location()}/data/equality.parquet"
    return delete_file(data, path, "PARQUET", 1, content=DataFileContent.EQUALITY_DELETES, equality_ids=[1])


def delete_file(data: Any, path: str, file_format: str, rows: int, **facts: Any) -> Any:
    """Entry of a delete file, which need not exist."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    found = DataFile.from_args(
        file_path=path,
        file_format=FileFormat[file_format],
        partition=data.partition,
        record_count=rows,
        file_size_in_bytes=1,
        **{"content": DataFileContent.POSITION_DELETES} | facts,
    )
    found.spec_id = data.spec_id
    return found


def commit_files(catalog: Any, name: str, files: Sequence[Any], *, are_deletes: bool = True) -> int:
    """Commit a snapshot with these delete files, or data files. Returns its id."""
    from pyiceberg.manifest import (
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

    class Writer(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES if are_deletes else ManifestContent.DATA

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes" if are_deletes else "data"}

    table = catalog.load_table(name)
    metadata, parent = table.metadata, table.current_snapshot()
    snapshot_id, number = metadata.last_sequence_number + 1_000_000, metadata.last_sequence_number + 1
    folder = f"{table.location()}/metadata/{snapshot_id}"
    output = table.io.new_output(f"{folder}-m.avro")
    with Writer(table.specs()[files[0].spec_id], table.schema(), output, snapshot_id, "null") as manifest:
        for file in files:
            added = ManifestEntryStatus.ADDED
            manifest.add_entry(ManifestEntry.from_args(status=added, snapshot_id=snapshot_id, data_file=file))
    manifests = [*(parent.manifests(table.io) if parent else []), manifest.to_manifest_file()]
    parent_id = parent.snapshot_id if parent else None
    output = table.io.new_output(f"{folder}-list.avro")
    with write_manifest_list(2, output, snapshot_id, parent_id, number, "null") as written:
        written.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=number,
        timestamp_ms=metadata.last_updated_ms + 1,
        manifest_list=f"{folder}-list.avro",
        summary=Summary(Operation.DELETE if are_deletes else Operation.APPEND),
        schema_id=metadata.current_schema_id,
    )
    ref = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id)
    catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), ref))
    return snapshot_id
