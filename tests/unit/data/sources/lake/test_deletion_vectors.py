"""Deletion vectors: as pyroaring and deltalake read them, or refused by name within bounded memory."""

from __future__ import annotations

import json
import struct
import tracemalloc
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.data.sources.lake.delta_commits import commit_deletion_vector, commit_vector, z85
from tests.unit.data.sources.lake.iceberg_commits import (
    catalog_at,
    commit_files,
    delete_file,
    position_file,
    vector_file,
)

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources import delta
from forebay.data.sources.deletion_vectors import num_rows, row_spans
from forebay.data.sources.delta_log import read_log
from forebay.errors import CorruptFile, ForebayError, InvalidOption

MAGIC = struct.pack("<I", 1681511377)
ALL_ROWS = struct.pack("<QIIBHHHHH", 1, 0, 12347, 1, 0, 65535, 1, 0, 65535)
"""64 Ki rows in 25 bytes."""


def vector_of(rows: Any, *, runs: bool = False) -> bytes:
    bitmap = pytest.importorskip("pyroaring").BitMap64(rows)
    if runs:
        bitmap.run_optimize()
    return MAGIC + bytes(bitmap.serialize())


def framed(vector: bytes) -> bytes:
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def rows_in(spans: Any) -> list[int]:
    return [row for start, stop in spans.tolist() for row in range(start, stop)]


pieces = st.tuples(
    st.sampled_from([0, 1 << 16, 65535 << 16, 1 << 32, (3 << 32) + (7 << 16)]),
    st.integers(0, 65535),
    st.sampled_from([1, 2, 40, 5000, 65536]),
    st.sampled_from([1, 2, 9]),
)


@given(drawn=st.lists(pieces, max_size=5), runs=st.booleans())
def test_rows_are_those_of_pyroaring(drawn: list[tuple[int, int, int, int]], runs: bool) -> None:
    rows = {base + row for base, first, count, step in drawn for row in range(first, 65536, step)[:count]}
    spans = row_spans(vector_of(rows, runs=runs))
    assert rows_in(spans) == sorted(rows)
    assert num_rows(spans) == len(rows)


@given(data=st.data())
def test_a_damaged_vector_is_refused_or_names_rows_once(data: st.DataObject) -> None:
    content = bytearray(vector_of([1, 2, 3, 100_000, 1 << 33, *range(200_000, 210_000)], runs=data.draw(st.booleans())))
    with pytest.raises(ValueError, match="end|bytes"):
        row_spans(bytes(content[: data.draw(st.integers(0, len(content) - 1))]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, min(len(content), 90) - 1))] = data.draw(st.integers(0, 255))
    try:
        spans = row_spans(bytes(content))
    except ValueError:
        return
    assert (spans[:, 0] < spans[:, 1]).all()
    assert (spans[1:, 0] >= spans[:-1, 1]).all()


def ids_of(uri: object) -> list[int]:
    manifest = fb.scan(str(uri), footers=False)
    reader = RowGroupReader(manifest)
    return sorted(row for index in range(len(manifest)) for row in reader.read(index)["id"].to_pylist())


def delta_at(folder: Path, *, stats: bool = True) -> Path:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(folder, pa.table({"id": range(10)}))
    if not stats:
        log = folder / "_delta_log" / f"{0:020}.json"
        log.write_text(log.read_text().replace('"stats":', '"other":'))
    return folder


def write_vectors(table: Path, vectors: list[bytes]) -> tuple[str, Path, list[int]]:
    """Write a file of vectors. Returns its name in the log, its path and where each begins."""
    number, content, begins = uuid.uuid4(), b"\x01", []
    for vector in vectors:
        begins.append(len(content))
        content += framed(vector)
    (table / "ab").mkdir(exist_ok=True)
    path = table / "ab" / f"deletion_vector_{number}.bin"
    path.write_bytes(content)
    return "ab" + z85(number.bytes), path, begins


@pytest.mark.parametrize("kind", ["i", "u", "p"])
def test_a_table_has_the_rows_of_deltalake_in_every_version(kind: str, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = delta_at(tmp_path / "my table")
    vectors = [vector_of([0, 2]), vector_of([2, 9])]
    name, path, begins = write_vectors(table, vectors)
    for version, (vector, begin) in enumerate(zip(vectors, begins, strict=True), 1):
        padded = vector + bytes(-len(vector) % 4)
        where = {"i": z85(padded), "u": name, "p": path.as_uri()}[kind]
        facts: dict[str, Any] = {"storageType": kind, "pathOrInlineDv": where, "sizeInBytes": len(vector)}
        commit_vector(table, -1, version, **facts | ({} if kind == "i" else {"offset": begin}))
    log = table / "_delta_log"
    # Of both commits: no reader of version 1 takes it.
    (log / f"{1:020}.{2:020}.compacted.json").write_text((log / f"{2:020}.json").read_text())
    deltalake.DeltaTable(table).create_checkpoint()
    deltalake.DeltaTable(table).restore(0)
    deltalake.DeltaTable(table).restore(1)
    for version, ids in enumerate([range(10), {*range(10)} - {0, 2}, {*range(10)} - {2, 9}, range(10), None]):
        found = fb.scan(table, version=version, footers=False)
        read = [row for index in range(len(found)) for row in RowGroupReader(found).read(index)["id"].to_pylist()]
        wanted = pa.table(deltalake.DeltaTable(table, version=version).scan())["id"].to_pylist()
        assert sorted(read) == sorted(wanted)
        assert ids is None or sorted(read) == sorted(ids)


@pytest.mark.parametrize("has_vector", [True, False])
def test_a_commit_after_the_log_was_read_is_of_the_next_version(
    has_vector: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta_at(tmp_path / "t")
    if has_vector:
        commit_deletion_vector(table, 0, [0, 2], version=1)
    version = int(has_vector)

    def read_first(*arguments: Any) -> Any:
        found = read_log(*arguments)
        commit_deletion_vector(table, -1, [2, 9], version=version + 1)
        return found

    monkeypatch.setattr(delta, "read_log", read_first)
    found = fb.scan(table, footers=False)
    read = RowGroupReader(found).read(0)["id"].to_pylist()
    assert (found.snapshot, read) == (f"delta {version}", sorted({*range(10)} - ({0, 2} if has_vector else set())))


@pytest.mark.parametrize(
    ("vector", "error"),
    [
        (MAGIC + struct.pack("<QIIIHHIHH", 1, 2, 12346, 1, 0, 1, 16, 1, 2), "10 rows, but .* deletes row 8589934594"),
        (MAGIC + ALL_ROWS, "the log states 2"),
        (MAGIC[::-1] + ALL_ROWS, "begins with the number"),
        (vector_of([3, 4])[:-1], "ends too early"),
        (b"", "ends too early"),
    ],
)
def test_a_vector_of_another_file_is_refused_by_name(vector: bytes, error: str, tmp_path: Path) -> None:
    table = delta_at(tmp_path / "t", stats=False)
    padded = vector + bytes(-len(vector) % 4)
    commit_vector(table, 0, 1, storageType="i", pathOrInlineDv=z85(padded), sizeInBytes=len(vector))
    tracemalloc.start()
    try:
        with pytest.raises(ForebayError, match=error):
            fb.scan(table, footers=False)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("damage", ["checksum", "size", "offset", "gone", "huge"])
def test_a_damaged_file_of_vectors_is_refused(damage: str, tmp_path: Path) -> None:
    table = delta_at(tmp_path / "t")
    vector = vector_of([0, 2])
    name, path, (begin,) = write_vectors(table, [vector])
    facts: dict[str, Any] = {"offset": begin, "sizeInBytes": len(vector)}
    if damage == "checksum":
        content = bytearray(path.read_bytes())
        content[-6] ^= 1
        path.write_bytes(content)
    elif damage == "gone":
        path.unlink()
    else:
        facts |= {"size": {"sizeInBytes": 5}, "offset": {"offset": 900}, "huge": {"sizeInBytes": (1 << 31) - 1}}[damage]
    commit_vector(table, 0, 1, storageType="u", pathOrInlineDv=name, **facts)
    with pytest.raises(InvalidOption, match="deletion vector .*cannot be read"):
        fb.scan(table, footers=False)


def test_two_vectors_of_one_file_are_refused(tmp_path: Path) -> None:
    """A file without its vector and with one, both live: two entries of one file, also with its path written twice."""
    table = delta_at(tmp_path / "t")
    log = table / "_delta_log" / f"{0:020}.json"
    add = next(line for line in log.read_text().splitlines() if '"add"' in line)
    (log.parent / f"{1:020}.json").write_text(add.replace('"path":"part', '"path":"%70art'))
    with pytest.raises(InvalidOption, match="names 1 files more than once"):
        fb.scan(table, footers=False)


def puffin_of(table: Any, data: Any, blob: bytes, **facts: object) -> Any:
    found = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 4}
    found |= {"length": len(blob), "properties": {"referenced-data-file": data.file_path}} | facts
    footer = json.dumps({"blobs": [found]}).encode()
    path = f"{table.location()}/data/vectors.puffin"
    content = b"PFA1" + blob + b"PFA1" + footer + struct.pack("<I", len(footer)) + bytes(4) + b"PFA1"
    Path(path.removeprefix("file://")).write_bytes(content)
    return delete_file(data, path, "PUFFIN", 1)


CHECKED = framed(vector_of([1, 2]))
PUFFINS: dict[str, tuple[bytes, dict[str, object], str]] = {
    "checksum": (CHECKED[:-1] + b"x", {}, "checksum is wrong"),
    "magic": (framed(b"XXXX" + vector_of([1, 2])[4:]), {}, "begins with the number"),
    "length": (CHECKED, {"length": 1 << 40}, "too large"),
    "beyond": (CHECKED, {"length": 1 << 20}, "bytes"),
    "offset": (CHECKED, {"offset": -400}, "too large"),
    "compressed": (CHECKED, {"compression-codec": "zstd"}, "compressed"),
    "high key": (framed(MAGIC + struct.pack("<QI", 1, 1 << 30) + ALL_ROWS[12:]), {}, "deletes row"),
    "all rows": (framed(MAGIC + ALL_ROWS), {}, "has 10 rows, but its table deletes row 65535"),
}


@pytest.mark.parametrize("case", PUFFINS)
def test_a_damaged_vector_of_iceberg_is_refused(case: str, tmp_path: Path) -> None:
    catalog = catalog_at(tmp_path)
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": np.arange(10)}))
    data = next(iter(table.scan().plan_files())).file
    blob, facts, error = PUFFINS[case]
    commit_files(catalog, "db.t", [puffin_of(table, data, blob, **facts)])
    with pytest.raises(InvalidOption if case not in ("high key", "all rows") else CorruptFile, match=error):
        fb.scan(table.refresh().metadata_location, footers=False)


@pytest.mark.parametrize("kind", ["positions", "vector"])
def test_deleted_rows_of_iceberg_are_left_out(kind: str, tmp_path: Path) -> None:
    """Also rows of two delete files, not sorted, with one row in both."""
    catalog = catalog_at(tmp_path)
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": np.arange(10)}))
    data = next(iter(table.scan().plan_files())).file
    deletes = [position_file(table, data, rows) for rows in ([7, 1, 3], [2, 3])]
    commit_files(catalog, "db.t", deletes if kind == "positions" else [vector_file(table, data, [1, 2, 3, 7])])
    assert ids_of(table.refresh().metadata_location) == [0, 4, 5, 6, 8, 9]


def test_a_table_with_vectors_and_widened_types(tmp_path: Path) -> None:
    """deltalake plans no scan of it."""
    table = delta_at(tmp_path / "t")
    vector = vector_of([0, 2])
    padded = vector + bytes(-len(vector) % 4)
    commit_vector(table, 0, 1, storageType="i", pathOrInlineDv=z85(padded), sizeInBytes=len(vector))
    log = table / "_delta_log" / f"{1:020}.json"
    log.write_text(log.read_text().replace('["deletionVectors"]', '["deletionVectors", "typeWidening"]'))
    assert ids_of(table) == [1, *range(3, 10)]
