"""Patterns, compared with the standard library's own."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest
from pyarrow import fs

from forebay.storage.globs import expand, fixed_part, is_pattern

NAMES = ["a.parquet", "b.parquet", "c.csv", "day=1/a.parquet", "day=2/b.parquet", "day=2/deep/c.parquet"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in [*NAMES, "_tmp/x.parquet", ".hidden/y.parquet", "day=1/_z.parquet"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.parquet", "?.parquet", "[ab].parquet", "[!a].*", "day=*", "day=*/*.parquet", "*/*", "**/*.parquet",
     "day=2/**/*.parquet", "day=*/deep/c.parquet", "no*", "**/deep/*"],
)  # fmt: skip
def test_agrees_with_the_standard_library_but_for_hidden_names(tree: Path, pattern: str) -> None:
    expected = {
        path
        for path in glob.glob(f"{tree}/{pattern}", recursive=True)  # noqa: PTH207
        if not any(part.startswith("_") for part in Path(path).relative_to(tree).parts)
    }
    found = [info.path for info in expand(fs.LocalFileSystem(), f"{tree}/{pattern}")]
    assert set(found) == expected
    assert len(found) == len(set(found))


def test_a_hidden_name_that_is_spelled_out_is_found(tree: Path) -> None:
    assert [info.base_name for info in expand(fs.LocalFileSystem(), f"{tree}/_tmp/*.parquet")] == ["x.parquet"]


def test_only_matching_folders_are_listed(tree: Path) -> None:
    listed: list[str] = []

    class RecordedListings:
        def get_file_info(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
            listed.append(selector.base_dir)
            return fs.LocalFileSystem().get_file_info(selector)

    expand(RecordedListings(), f"{tree}/day=1/*.parquet")
    assert listed == [f"{tree}/day=1"]


@pytest.mark.parametrize(
    ("pattern", "folder"), [("/a/*.pq", "/a"), ("/*/x", "/"), ("*.pq", ""), ("b/c/d?/**", "b/c"), ("/a/b[0]/c", "/a")]
)
def test_fixed_part(pattern: str, folder: str) -> None:
    assert is_pattern(pattern)
    assert not is_pattern(folder)
    assert fixed_part(pattern) == folder
