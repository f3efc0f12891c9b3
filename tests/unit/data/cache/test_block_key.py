"""Block keys: they change with everything that a block's bytes depend on, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.data.cache import block_key as key
from forebay.data.cache.block_key import KEY, block_key, dataset_key
from forebay.data.manifest.manifest import Manifest, RowGroup

ROW_GROUP = RowGroup(uri="/d/a.parquet", index=3, rows=10, bytes=80, file_size=999, file_mtime_ns=7, file_etag="e")


def test_key_is_pinned() -> None:
    # Released versions find their cached blocks by this key: a change here invalidates all caches.
    assert block_key(ROW_GROUP, "f" * 64) == "d101a52323c13c42f38887f82e8d6557247958af"


def test_key_has_the_form_that_file_names_need() -> None:
    assert KEY.fullmatch(block_key(ROW_GROUP, "anything"))


@pytest.mark.parametrize(
    "change",
    [{"uri": "/d/b.parquet"}, {"index": 4}, {"rows": 11}, {"file_size": 1}, {"file_mtime_ns": 8}, {"file_etag": ""},
     {"file_stamp": "5.6"}],
)  # fmt: skip
def test_another_row_group_or_file_version_has_another_key(change: dict[str, Any]) -> None:
    assert block_key(replace(ROW_GROUP, **change), "f") != block_key(ROW_GROUP, "f")


def test_another_transform_has_another_key() -> None:
    assert block_key(ROW_GROUP, "f") != block_key(ROW_GROUP, "g")


def test_another_file_format_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = block_key(ROW_GROUP, "f")
    monkeypatch.setattr(key, "FILE_VERSION", 2)
    assert block_key(ROW_GROUP, "f") != before


def test_data_set_is_one_place_under_one_transform(memory_manifest: Callable[..., Manifest]) -> None:
    whole = memory_manifest([3, 4, 5])
    rest, held_out = whole.split(0.3)
    assert dataset_key(rest, "f") == dataset_key(held_out, "f") == dataset_key(whole, "f")
    assert dataset_key(whole, "g") != dataset_key(whole, "f")
    assert dataset_key(replace(whole, root="elsewhere://"), "f") != dataset_key(whole, "f")


@pytest.mark.parametrize(
    ("root", "readable"),
    [
        ("/data/clicks/", "clicks"),
        ("s3://bucket/a b?region=x", "a-b-region-x"),
        ("", "data"),
        ("/x/" + "y" * 99, "y" * 32),
    ],
)
def test_data_set_is_readable(root: str, readable: str, memory_manifest: Callable[..., Manifest]) -> None:
    assert dataset_key(replace(memory_manifest([1]), root=root), "f").rpartition("-")[0] == readable
