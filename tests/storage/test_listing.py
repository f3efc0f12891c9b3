"""Keys of a bucket are read rightly, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import ForebayError, InvalidOption
from forebay.storage.filesystem import resolve

# What Spark and Hive write for values, and what others write.
VALUES = {"x%2Fy": "x/y", "2026-01-01 00%3A00": "2026-01-01 00:00", "a%3D2": "a=2", "50%25": "50%", "a=b": "a=b",
          "%253A": "%3A", "%zz": "%zz", "%E4%B8%AD": "\u4e2d", "a b+c": "a b+c", "a#b": "a#b"}  # fmt: skip


def content(first: int = 0) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(first, first + 4)}), sink)
    return bytes(sink.getvalue())


def ids(manifest: fb.Manifest) -> list[int]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index, ["id"])["id"].to_pylist()]


def write(store: Any, key: str) -> None:
    """Write an object of four rows under a name that is not decoded."""
    root = resolve(store.uri(""))
    path = f"{root.path.rstrip('/')}/{key}"
    root.fs.create_dir(path.rpartition("/")[0], recursive=True)
    with root.fs.open_output_stream(path, compression=None) as stream:
        stream.write(content())


@pytest.fixture
def put(s3: Any, s3_port: int) -> Callable[..., None]:
    """`put(key)` makes an object of any key, which pyarrow may not."""

    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{s3_port}",
        region_name="us-east-1",
        aws_access_key_id="AKIATESTTEST",
        aws_secret_access_key="s3-secret-of-tests",
    )

    def send(key: str, body: bytes | None = None) -> None:
        client.put_object(Bucket="bucket", Key=key, Body=content() if body is None else body)

    return send


def test_partition_values_are_those_of_the_local_disk(store: Any, tmp_path: Path) -> None:
    for written in VALUES:
        name = f"k={written}/a.parquet"
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content())
        write(store, f"values/{name}")
    local, found = fb.scan(tmp_path), fb.scan(store.uri("values"))
    assert {file.constants for file in local.files} == {(("k", value),) for value in VALUES.values()}
    assert {file.constants for file in found.files} == {file.constants for file in local.files}
    assert ids(found) == ids(local)
    assert fb.scan(store.uri("values"), where="k == 'x/y'").num_rows == 4


def test_hidden_keys_and_other_suffixes(store: Any) -> None:
    for key in ("_day=1/a.parquet", "_day=2/a.parquet", "_temporary/0/a.parquet", "_b.parquet", "c.csv", "d"):
        write(store, f"hidden/{key}")
    manifest = fb.scan(store.uri("hidden"))
    assert manifest.num_rows == 8
    assert "left out: 2 files of other suffixes (none 1, .csv 1)" in manifest.notes
    assert any("2 files with hidden names" in note for note in manifest.notes)


@pytest.mark.parametrize("key", ["e//b.parquet", "e/a//b.parquet", "e/a///b.parquet", "/e/b.parquet"])
def test_a_key_with_an_empty_part_is_refused_by_name(s3: Any, put: Any, key: str) -> None:
    put(key)
    put("e/c.parquet")
    uris = ["e", "e/**/*.parquet", key] if key.startswith("e") else [key]
    for uri in uris:
        with pytest.raises(ForebayError, match=r"bucket/+e.*empty part"):
            fb.scan(s3.uri(uri))


@pytest.mark.parametrize("marker", ["f/", "f/day=1/", "f/day=1_$folder$", "f_$folder$"])
def test_markers_of_folders_are_no_files(s3: Any, put: Any, marker: str) -> None:
    put(marker, b"")
    put("f/day=1/a.parquet")
    assert fb.scan(s3.uri("f")).num_rows == 4


@pytest.mark.parametrize("body", [b"", b"x", None])
def test_a_key_that_is_a_file_and_a_folder(s3: Any, put: Any, body: bytes | None) -> None:
    put("both/t", body)
    put("both/t/a.parquet")
    with pytest.raises(InvalidOption, match=r"both/t.* is an object of \d+ bytes, and also a folder.*\*\*/\*\.parquet"):
        fb.scan(s3.uri("both/t"))
    assert fb.scan(s3.uri("both/t/**/*.parquet")).num_rows == 4
    assert fb.scan(s3.uri("both")).num_rows == 4


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("g/a#b.parquet", "%23"),
        ("g/a?b.parquet", "%3F"),
        ("g/a?", "%3F"),
        ("g/a%20b.parquet", "%25"),
        ("g/x/a?/*", "%3F"),
    ],
)
def test_a_key_that_a_uri_cannot_hold_as_it_is(s3: Any, put: Any, key: str, right: str) -> None:
    put(key.replace("/*", "/c.parquet"))
    for given in (f"{s3.base}/{key}", f"{s3.base}/{key}?{s3.options}"):
        if given.partition("?")[2]:
            with pytest.raises(ForebayError, match=re.escape(right)):
                fb.scan(given)
    quoted = f"{s3.base}/{quote(key, safe='/*')}?{s3.options}"
    assert fb.scan(quoted).num_rows == 4


@pytest.mark.parametrize("key", ["h/a*b.parquet", "h/a[1].parquet", "h/" + "x" * 900 + ".parquet"])
def test_other_keys_are_read(s3: Any, put: Any, key: str) -> None:
    put(f"h/{len(key)}{key[1:]}")
    folder = s3.uri(f"h/{len(key)}")
    assert fb.scan(folder).num_rows == len(ids(fb.scan(folder))) == 4
