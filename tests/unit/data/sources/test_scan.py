"""Manifests of folders, and every defect that a folder can have."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fuzz.mutants import thrift
from tests.unit.data.sources.lake.delta_commits import commit_deletion_vector

from forebay.data.manifest.manifest import Field
from forebay.data.parquet.footer import FooterSizes, fetch_footer
from forebay.data.sources import file_scan
from forebay.data.sources.scan import scan
from forebay.errors import CorruptFile, InvalidOption, LimitReached, MissingColumn, MixedSchemas, NoFiles, ReadFailed
from forebay.storage.filesystem import Location, resolve
from forebay.storage.retry import ReadPolicy

Folder = Callable[..., Path]
Write = Callable[..., Path]
Alter = Callable[[Path, dict[int, int]], None]


def test_row_groups_in_the_order_of_path_and_number(parquet_folder: Folder) -> None:
    root = parquet_folder({"b.parquet": [2], "a.parquet": [3, 1], "sub/c.parquet": [5, 4]})
    manifest = scan(root)
    assert [file.path for file in manifest.files] == ["a.parquet", "b.parquet", "sub/c.parquet"]
    assert manifest.rows.tolist() == [3, 1, 2, 5, 4]
    assert manifest.file_of.tolist() == [0, 0, 1, 2, 2]
    assert manifest.group_of.tolist() == [0, 1, 0, 0, 1]
    assert manifest.root == str(root)
    status = (root / "b.parquet").stat()
    assert manifest[2].uri == str(root / "b.parquet")
    assert (manifest[2].file_size, manifest[2].file_mtime_ns) == (status.st_size, status.st_mtime_ns)


def test_fields_and_sizes(parquet_folder: Folder) -> None:
    manifest = scan(parquet_folder({"a.parquet": [4, 2]}))
    types = {field.name: field.type for field in manifest.fields}
    assert types["tags"] == "list<element: int64>"
    assert types["x0"] == "float"
    assert manifest.columns == tuple(types)
    footer = pq.read_metadata(manifest[0].uri)
    chunks = [footer.row_group(1).column(leaf) for leaf in range(footer.num_columns)]
    assert manifest.bytes[1] == sum(chunk.total_uncompressed_size for chunk in chunks)
    assert manifest.source_bytes[1] == sum(chunk.total_compressed_size for chunk in chunks)


def test_a_selection_keeps_its_order_and_counts_its_bytes(parquet_folder: Folder) -> None:
    root = parquet_folder({"a.parquet": [40]})
    whole, part = scan(root), scan(root, columns=["clicked", "tags"])
    assert part.columns == ("clicked", "tags")
    assert part.fields == (Field(name="clicked", type="int8"), Field(name="tags", type="list<element: int64>"))
    assert 0 < part.bytes[0] < whole.bytes[0]
    assert 0 < part.source_bytes[0] < whole.source_bytes[0]
    assert part.id != whole.id
    assert scan(root, columns="clicked").columns == ("clicked",)


def test_empty_row_groups_and_files_are_skipped(parquet_folder: Folder) -> None:
    root = parquet_folder({"a.parquet": [0, 3, 0], "b.parquet": [], "c.parquet": [0], "d.parquet": [1]})
    manifest = scan(root)
    assert [(group.uri.rpartition("/")[2], group.index, group.rows) for group in manifest] == [
        ("a.parquet", 1, 3),
        ("d.parquet", 0, 1),
    ]
    assert len(manifest.files) == 2


def test_the_schema_of_files_without_rows_does_not_matter(write_table: Write) -> None:
    write_table("a.parquet", {"x": pa.array([], pa.null())})
    root = write_table("b.parquet", {"x": [1.5]}).parent
    assert scan(root).fields == (Field(name="x", type="double"),)


def test_all_empty(parquet_folder: Folder) -> None:
    with pytest.raises(NoFiles, match="none of the 2 files has a row") as caught:
        scan(parquet_folder({"a.parquet": [], "b.parquet": [0]}))
    assert caught.value.files == 2


def test_a_moved_folder_keeps_its_id_and_a_touched_file_does_not(parquet_folder: Folder, tmp_path: Path) -> None:
    root = parquet_folder({"a.parquet": [3, 1], "sub/b.parquet": [2]})
    before = scan(root)
    moved = tmp_path / "elsewhere"
    shutil.copytree(root, moved)
    assert scan(moved) == before
    assert scan(f"{moved}/*").root == scan(moved).root
    assert scan([moved / "a.parquet", moved / "sub/b.parquet"]) == before
    assert scan(f"file://{moved}") == before
    os.utime(moved / "a.parquet", ns=(1, 1))
    assert scan(moved) != before


def test_on_another_file_system(parquet_folder: Folder) -> None:
    root = parquet_folder({"a.parquet": [3, 1], "b.parquet": [2]})
    memory = fsspec.filesystem("memory")
    memory.put(str(root), "/forebay-scan", recursive=True)
    manifest = scan("memory://forebay-scan")
    assert (manifest.root, manifest.rows.tolist()) == ("memory://forebay-scan", [3, 1, 2])
    assert manifest[2].uri == "memory://forebay-scan/b.parquet"
    memory.rm("/forebay-scan", recursive=True)


@pytest.mark.parametrize("columns", [[], ["x", "x"]])
def test_selections_that_cannot_work(parquet_folder: Folder, columns: list[str]) -> None:
    with pytest.raises(InvalidOption, match="at least one column, and each once"):
        scan(parquet_folder({"a.parquet": [1]}), columns=columns)


def test_a_missing_column(parquet_folder: Folder) -> None:
    with pytest.raises(MissingColumn, match="Did you mean 'clicked'") as caught:
        scan(parquet_folder({"a.parquet": [1]}), columns=["x0", "click"])
    assert caught.value.column == "click"


def test_mixed_schemas(write_table: Write) -> None:
    write_table("a.parquet", {"x": pa.array([1], pa.int64()), "y": [1]})
    root = write_table("b.parquet", {"y": [1], "x": pa.array([1], pa.float64())}).parent
    with pytest.raises(MixedSchemas, match=r"'x' is int64 in .*a\.parquet, but is double in .*b\.parquet"):
        scan(root)
    assert scan(root, columns=["y"]).num_rows == 2


@pytest.mark.parametrize("keep", [0, 3, 11, 200, -1])
def test_truncated_files(parquet_folder: Folder, keep: int) -> None:
    root = parquet_folder({"a.parquet": [10], "b.parquet": [10]})
    path = root / "b.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFile, match=r"b\.parquet is corrupt.*cut off or is not a Parquet file") as caught:
        scan(root)
    assert caught.value.uri == str(path)


def test_a_footer_longer_than_the_file(parquet_folder: Folder, alter: Alter) -> None:
    path = parquet_folder({"a.parquet": [10]}) / "a.parquet"
    alter(path, {path.stat().st_size - 5: 0x40})
    with pytest.raises(CorruptFile, match=r"claims 10737\d+ bytes of a file of"):
        scan(path)


def test_a_footer_of_rubbish(parquet_folder: Folder, alter: Alter) -> None:
    path = parquet_folder({"a.parquet": [10]}) / "a.parquet"
    size = path.stat().st_size
    alter(path, {size - 9 - place: 0xA5 for place in range(0, 400, 3)})
    with pytest.raises(CorruptFile, match="corrupt: its"):
        scan(path)


@pytest.mark.parametrize(("rows", "has_deletes"), [(1 << 50, False), (1 << 43, True)])
def test_a_footer_of_more_rows_than_memory_holds(tmp_path: Path, rows: int, has_deletes: bool) -> None:
    """A plan of them, or the mask of those that a table has not deleted."""
    table = tmp_path / "t"
    if has_deletes:
        pytest.importorskip("deltalake").write_deltalake(table, pa.table({"id": range(10)}))
        commit_deletion_vector(table, 0, [0, 2], version=1)
    else:
        table.mkdir()
        pq.write_table(pa.table({"id": range(10)}), table / "a.parquet")
    (path,) = table.glob("*.parquet")
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer, _ = thrift.read_struct(whole, start)
    (group,) = footer.get(4).values
    footer.set(3, rows)
    group.set(3, rows)
    for column in group.get(1).values:
        column.get(3).set(5, rows)
    changed = thrift.write(footer)
    path.write_bytes(whole[:start] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(LimitReached, match=rf"{path.name} claims {rows} rows in"):
        scan(table, footers=False)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.variation) for seed in range(1, 5))])
def test_a_flipped_bit_in_a_footer_never_ends_the_process(seed: int, write_table: Write, alter: Alter) -> None:
    """Several of these flips make `RowGroupMetaData.column` and statistics of pyarrow 26.0.1 abort."""
    path = write_table("a.parquet", {"x": np.arange(300), "s": [f"é{number % 7}" for number in range(300)]}, 100)
    good = path.read_bytes()
    first = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    rng = np.random.default_rng(seed)
    refused = 0
    for position, bit in zip(rng.integers(first, len(good), 100), rng.integers(8, size=100), strict=True):
        alter(path, {int(position): 1 << int(bit)})
        try:
            scan(path, where="x >= 0 and s > 'a'")
        except (CorruptFile, MissingColumn, NoFiles, InvalidOption):
            refused += 1
        path.write_bytes(good)
    assert refused > 15


def test_big_footers_take_a_second_read(write_table: Write) -> None:
    path = write_table("a.parquet", {f"column {number}": np.arange(60) for number in range(50)}, rows_per_group=2)
    assert int.from_bytes(path.read_bytes()[-8:-4], "little") > 1 << 16
    assert scan(path).rows.tolist() == [2] * 30


@pytest.mark.parametrize("groups", [1, 30])
def test_later_footers_take_one_read_of_little_more_than_their_bytes(write_table: Write, groups: int) -> None:
    """Of any size: the files before had similar ones."""
    columns = {f"column {number}": np.arange(60) for number in range(50)}
    path = write_table("a.parquet", columns, rows_per_group=60 // groups)
    needed = int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
    reads: list[int] = []

    class Counted:
        def __init__(self, size: int) -> None:
            self._padding = size - path.stat().st_size

        def size(self) -> int:
            return path.stat().st_size + self._padding

        def read_at(self, count: int, start: int) -> bytes:
            reads.append(count)
            content = bytes(self._padding) + path.read_bytes()
            return content[start : start + count]

    sizes = FooterSizes()
    for size in (8 << 20, 8 << 20, 9 << 20):
        fetch_footer("a", Counted(size), sizes)
    assert len(reads) <= 4 and reads[-1] == reads[-2] <= max(1.3 * needed, 8192)
    reads.clear()
    fetch_footer("small", Counted(path.stat().st_size), sizes)
    assert reads[0] <= 1 << 16, "an odd large footer must not make small files be read twice"


def test_progress_is_told_from_the_calling_thread(parquet_folder: Folder) -> None:
    seen: list[tuple[int, int, int]] = []
    root = parquet_folder({f"{number}.parquet": [1] for number in range(5)})
    scan(root, progress=lambda done, total: seen.append((done, total, threading.get_ident())))
    assert seen == [(number, 5, threading.get_ident()) for number in range(1, 6)]


def test_storage_that_fails_once_is_asked_again(
    parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy
) -> None:
    root = parquet_folder({"a.parquet": [1], "b.parquet": [2]})
    failed: set[str] = set()

    def flaky(uri: str, file: pa.NativeFile, *sizes: Any) -> pa.Buffer:
        if uri not in failed:
            failed.add(uri)
            raise OSError("connection reset")
        return fetch_footer(uri, file, *sizes)

    monkeypatch.setattr(file_scan, "fetch_footer", flaky)
    assert scan(root, policy=quick).rows.tolist() == [1, 2]
    assert len(failed) == 2


def test_storage_that_keeps_failing(parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy) -> None:
    root = parquet_folder({f"{number}.parquet": [1] for number in range(40)})

    def broken(uri: str, file: pa.NativeFile, *_: Any) -> pa.Buffer:
        raise OSError("connection reset")

    monkeypatch.setattr(file_scan, "fetch_footer", broken)
    with pytest.raises(ReadFailed, match=r"\.parquet could not be read: 3 attempts.*connection reset"):
        scan(root, policy=quick)


def test_a_file_that_goes_away_after_the_listing(
    parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy
) -> None:
    root = parquet_folder({"a.parquet": [1]})

    def gone(uri: str) -> Location:
        (root / "a.parquet").unlink()
        return resolve(uri)

    monkeypatch.setattr(file_scan, "resolve_source", gone)
    with pytest.raises(ReadFailed, match=r"a\.parquet was listed but no longer exists"):
        scan(root, policy=quick)


def test_an_interrupt_leaves_at_once(parquet_folder: Folder) -> None:
    root = parquet_folder({f"{number}.parquet": [1] for number in range(40)})

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(root, progress=interrupt)
