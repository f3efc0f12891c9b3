"""Files that are found, their order, and the error if there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import fs

from forebay.data.manifest.manifest import Manifest
from forebay.data.sources import parquet_files
from forebay.data.sources.parquet_files import find_parquet
from forebay.errors import InvalidOption, NoFiles, ReadFailed
from forebay.storage.filesystem import Location
from forebay.storage.versions import FoundFile, stat


def names(root: Path, files: list[FoundFile]) -> list[str]:
    return [os.path.relpath(file.uri, root) for file in files]


def test_a_folder_is_searched_to_the_bottom(touch: Callable[..., Path]) -> None:
    root = touch(
        "b.parquet", "a.parq", "x/y/c.pq", "_SUCCESS", "_tmp/d.parquet", ".e.parquet", "f.csv", "x/.g/h.parquet"
    )
    assert names(root, find_parquet(root).files) == ["a.parq", "b.parquet", "x/y/c.pq"]
    assert find_parquet(root).root == str(root)


def test_order_is_that_of_the_uris_not_of_the_numbers(touch: Callable[..., Path]) -> None:
    root = touch("part-10.parquet", "part-2.parquet", "part-1.parquet")
    assert names(root, find_parquet(f"{root}/").files) == ["part-1.parquet", "part-10.parquet", "part-2.parquet"]


def test_a_named_file_may_have_any_suffix_and_its_folder_is_the_root(touch: Callable[..., Path]) -> None:
    root = touch("day/000000_0")
    found = find_parquet(root / "day/000000_0")
    assert (found.root, names(root, list(found.files))) == (str(root / "day"), ["day/000000_0"])


def test_a_pattern_takes_any_suffix_from_files_and_ours_from_folders(touch: Callable[..., Path]) -> None:
    root = touch(
        "day=1/a.parquet", "day=1/notes.txt", "day=2/b.parquet", "day=2/in/c.parquet", "day=x.txt", "z/d.parquet"
    )
    found = find_parquet(f"{root}/day=*")
    assert names(root, list(found.files)) == ["day=1/a.parquet", "day=2/b.parquet", "day=2/in/c.parquet", "day=x.txt"]
    assert found.root == str(root)


def test_a_file_with_wildcards_in_its_name_is_itself(touch: Callable[..., Path]) -> None:
    root = touch("a[1].parquet", "a1.parquet")
    assert names(root, find_parquet(root / "a[1].parquet").files) == ["a[1].parquet"]


def test_overlapping_uris_give_each_file_once(touch: Callable[..., Path]) -> None:
    root = touch("x/a.parquet", "x/b.parquet", "y/c.parquet")
    found = find_parquet([root / "y", root / "x/a.parquet", f"{root}/x/*.parquet"])
    assert names(root, list(found.files)) == ["x/a.parquet", "x/b.parquet", "y/c.parquet"]
    assert found.root == str(root)


@pytest.mark.parametrize(
    ("roots", "common"),
    [
        (["/a/b", "/a/c"], "/a"),
        (["/a", "/b"], "/"),
        (["/a/bc", "/a/bd"], "/a"),
        (["s3://b/x?region=e", "s3://b/y?region=e"], "s3://b?region=e"),
        (["s3://b/x?region=e", "s3://b/y?region=f"], ""),
        (["s3://b/x", "s3://c/x"], ""),
        (["s3://b/x", "gs://b/x"], ""),
        (["hdfs:///x/1", "hdfs:///x/2"], "hdfs:///x"),
    ],
)
def test_common_root(roots: list[str], common: str) -> None:
    assert parquet_files._common_root(roots) == common


def test_versions(touch: Callable[..., Path]) -> None:
    path = touch("a.parquet") / "a.parquet"
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    now = path.stat()
    stamp = f"{now.st_ino}.{now.st_ctime_ns}"
    assert stat(path) == FoundFile(uri=str(path), size=1, mtime_ns=1_700_000_000_123_456_789, stamp=stamp)
    assert find_parquet(path).files == (stat(path),)


def test_stat_of_nothing_and_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not there"):
        stat(tmp_path / "no")
    with pytest.raises(FileNotFoundError, match="a folder"):
        stat(tmp_path)


def test_names_are_quoted_in_uris_and_found_again(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe({"/data/day=1/a b?.parquet": b"xy", "/data/c%20.parquet": b"z", "/data/no.txt": b""})
    found = find_parquet("memory://data")
    assert found.root == "memory://data"
    assert [file.uri for file in found.files] == [
        "memory://data/c%20.parquet",
        "memory://data/day=1/a b?.parquet",
    ]
    assert [stat(file.uri).size for file in found.files] == [1, 2]
    assert [file.uri for file in find_parquet("memory://data/day=*/*.parquet").files] == [found.files[1].uri]


def test_arrow_uris_are_percent_encoded_and_keep_their_options() -> None:
    base = Location(fs.SubTreeFileSystem("/", fs.LocalFileSystem()), "bucket/my data", "s3://bucket/my%20data?region=x")
    assert (
        parquet_files.child_uri(base, "bucket/my data/a b%.parquet")
        == "s3://bucket/my%20data/a%20b%25.parquet?region=x"
    )


@pytest.mark.parametrize("make", [pa.table, pd.DataFrame])
def test_a_table_in_memory_is_no_file(make: Callable[[dict[str, list[int]]], object]) -> None:
    with pytest.raises(InvalidOption, match="in memory was given, and a scan reads files. Write it as Parquet"):
        find_parquet(make({"a": [1]}))  # type: ignore[arg-type]


def test_a_manifest_is_no_table_in_memory(memory_manifest: Callable[[list[int]], Manifest]) -> None:
    with pytest.raises(InvalidOption, match="a Manifest was given, which is what a scan returns"):
        find_parquet(memory_manifest([1]))  # type: ignore[arg-type]


def test_nothing_there_names_the_nearest_folder(tmp_path: Path) -> None:
    with pytest.raises(NoFiles, match=rf"no/such/place does not exist. The nearest folder that exists is {tmp_path}\."):
        find_parquet(tmp_path / "no/such/place")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("clickz", "clicks"), ("Clicks/a.parquet", "clicks"), ("clicks/a.parqet", "a.parquet"), ("sales", None)],
)
def test_a_name_that_is_nearly_there_is_asked_for(touch: Callable[..., Path], asked: str, meant: str | None) -> None:
    root = touch("clicks/a.parquet")
    with pytest.raises(NoFiles) as nothing:
        find_parquet(root / asked)
    assert (f" Did you mean {meant!r}?" in str(nothing.value)) == (meant is not None)


def test_other_files_are_counted_and_the_pattern_is_told(touch: Callable[..., Path]) -> None:
    root = touch("a.csv", "b.csv")
    with pytest.raises(NoFiles, match=r"2 files of other names, e.g. [ab].csv.*/\*"):
        find_parquet(root)


def test_an_empty_folder_a_pattern_and_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(NoFiles, match="no files at all"):
        find_parquet(tmp_path)
    with pytest.raises(NoFiles, match="No file matches"):
        find_parquet(f"{tmp_path}/*.parquet")
    with pytest.raises(NoFiles, match="list of URIs is empty"):
        find_parquet([])


def test_what_is_no_location_is_named() -> None:
    with pytest.raises(InvalidOption, match="3 is not a location"):
        find_parquet([3])  # type: ignore[list-item]


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(location: Location, *_: object) -> parquet_files.Listing:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(parquet_files, "_list", denied)
    with pytest.raises(ReadFailed, match=r"may not be listed.*Permission denied.*read access"):
        find_parquet(tmp_path)


@pytest.mark.parametrize(
    "name", ["a.parquet?host=h", "a.parquet?token=x.y", "a?auto_mkdir&host=h", "a?my-secret.parquet"]
)
def test_a_listed_name_is_no_option(name: str) -> None:
    """fsspec would connect to that host, with this user's password."""
    base = Location(fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("memory"))), "/data", "sftp://mine/data")
    with pytest.raises(InvalidOption, match="read as options"):
        parquet_files.child_uri(base, f"/data/{name}")
