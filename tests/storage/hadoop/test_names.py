"""Names that other stores' URIs could not hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.storage.conftest import Epochs, ObjectStore

import forebay as fb
from forebay.storage.filesystem import resolve

pytestmark = pytest.mark.variation("two JVMs")

NAMES = [
    "a b.parquet",
    "a%20b.parquet",
    "a=b.parquet",
    "a?.parquet",
    "a?b=c.parquet",
    "a#b.parquet",
    "é/a.parquet",
    "d?1/x#y/a.parquet",
]


@pytest.fixture
def folder(hdfs: ObjectStore, parquet_folder: Callable[..., Path]) -> Path:
    folder = parquet_folder({name: [3, 2] for name in NAMES})
    for name in NAMES:
        hdfs.write(f"names/{name}?&", (folder / name).read_bytes())
    return folder


def test_odd_names_are_listed_and_read(
    folder: Path, hdfs: ObjectStore, cache: fb.DiskCache, epochs_of: Callable[..., Epochs]
) -> None:
    for options in ("", "?replication=1"):
        manifest = fb.scan(hdfs.uri("names") + options)
        assert [file.path for file in manifest.files] == sorted(NAMES)
        assert epochs_of(manifest, cache, 1)[0] == epochs_of(fb.scan(folder), None, 1)[0]


def test_a_file_of_an_odd_name_is_named_by_the_uri_of_its_listing(folder: Path, hdfs: ObjectStore) -> None:
    manifest = fb.scan(hdfs.uri("names"))
    for uri in np.unique([row_group.uri for row_group in manifest]):
        assert fb.scan(str(uri)).num_rows == 5
    many = fb.scan([row_group.uri for row_group in manifest])
    assert many.num_rows == manifest.num_rows


def test_patterns_match_them(folder: Path, hdfs: ObjectStore) -> None:
    def found(pattern: str) -> list[str]:
        return [file.path for file in fb.scan(hdfs.uri(f"names/{pattern}")).files]

    assert found("a?b.parquet") == ["a b.parquet", "a#b.parquet", "a=b.parquet"]
    assert found("d??/*/a.parquet?replication=1") == ["d?1/x#y/a.parquet"]
    assert found("a[?]*?&") == ["a?.parquet", "a?b=c.parquet"]


def test_a_name_that_ends_like_options(folder: Path, hdfs: ObjectStore) -> None:
    hdfs.write("ends/x?replication=2?&", (folder / NAMES[0]).read_bytes())
    manifest = fb.scan(hdfs.uri("ends/*"))
    assert [file.path for file in manifest.files] == ["x?replication=2"]
    assert fb.scan(manifest[0].uri).num_rows == 5
    assert resolve(manifest[0].uri).path.endswith("/ends/x?replication=2")
