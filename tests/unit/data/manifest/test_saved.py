"""Saved manifests load back equal, or are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.data.manifest.manifest import File, Manifest
from forebay.data.manifest.saved import load_manifest, save_manifest
from forebay.errors import InvalidOption, LimitReached

Make = Callable[..., Manifest]
SUFFIXES = ["json", "parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=st.lists(st.integers(1, 2**40), min_size=1, max_size=12), groups_per_file=st.integers(1, 5))
def test_what_was_saved_is_loaded(
    memory_manifest: Make, tmp_path: Path, suffix: str, rows: list[int], groups_per_file: int
) -> None:
    manifest = memory_manifest(rows, groups_per_file)
    save_manifest(manifest, tmp_path / f"m.{suffix}")
    loaded = load_manifest(tmp_path / f"m.{suffix}")
    assert loaded == manifest
    assert (loaded.root, loaded.fields, loaded.files) == (manifest.root, manifest.fields, manifest.files)
    assert [group.bytes for group in loaded] == [group.bytes for group in manifest]
    assert loaded.source_bytes.tolist() == manifest.source_bytes.tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_odd_names_and_nothing_at_all(memory_manifest: Make, tmp_path: Path, suffix: str) -> None:
    one = memory_manifest([1])
    odd = replace(one, root="/dätä/x?y", files=(File(path='é"\n.parquet', size=1, mtime_ns=-5, etag="W/x"),))
    for number, manifest in enumerate([odd, one.take([])]):
        path = tmp_path / f"{number}.{suffix}"
        save_manifest(manifest, path)
        assert load_manifest(path) == manifest
        assert load_manifest(path).files == manifest.files


def test_the_parquet_form_is_a_table_for_any_tool(memory_manifest: Make, tmp_path: Path) -> None:
    save_manifest(memory_manifest([3, 1, 5], groups_per_file=2), tmp_path / "m.parquet")
    table = pq.read_table(tmp_path / "m.parquet")
    assert table["rows"].to_pylist() == [3, 1, 5]
    assert table["path"].cast(pa.string()).to_pylist() == ["part-000000.parquet"] * 2 + ["part-000001.parquet"]
    assert table["file_size"].to_pylist() == [1000, 1000, 1001]


def test_another_suffix(memory_manifest: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"\.json or \.parquet"):
        save_manifest(memory_manifest([1]), tmp_path / "m.txt")
    assert not list(tmp_path.iterdir())


def test_what_is_no_manifest(tmp_path: Path) -> None:
    contents = [b"", b"{", b"[1]", b"{}", b"null", b"\xff\xfe", b"PAR1 but no more"]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data.parquet")
    for path in tmp_path.iterdir():
        with pytest.raises(InvalidOption, match=r"is not a manifest.*forebay scan"):
            load_manifest(path)
    with pytest.raises(InvalidOption, match=r"cannot be read.*forebay scan"):
        load_manifest(tmp_path / "missing.json")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("rows", [[1, 1 << 58], [1 << 59, 1 << 59]])
def test_rows_that_no_memory_holds(memory_manifest: Make, tmp_path: Path, suffix: str, rows: list[int]) -> None:
    save_manifest(memory_manifest(rows), tmp_path / f"m.{suffix}")
    with pytest.raises(LimitReached, match=rf"part-00000\d.parquet claims {max(rows)} rows in a file of \d+ bytes"):
        load_manifest(tmp_path / f"m.{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_below_0(memory_manifest: Make, tmp_path: Path, suffix: str) -> None:
    save_manifest(memory_manifest([5, -2]), tmp_path / f"m.{suffix}")
    with pytest.raises(InvalidOption, match="rows below 0"):
        load_manifest(tmp_path / f"m.{suffix}")


def test_a_mask_that_no_memory_holds(memory_manifest: Make) -> None:
    with pytest.raises(LimitReached, match=f"part-000000.parquet claims {1 << 43} rows"):
        memory_manifest([1 << 43]).keeps(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forebay_manifest": 99}, "version 99; this Forebay reads version 1"),
        ({"columns": ["other"]}, "edited.*has id"),
        ({"files": []}, "damaged"),
        ({"files": [{"path": 1}]}, "damaged"),
        ({"row_groups": {"rows": [1]}}, "damaged"),
        ({"row_groups": None}, "damaged"),
        ({"id": None}, "damaged"),
    ],
)
def test_another_version_or_an_edited_file(
    memory_manifest: Make, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "m.json"
    save_manifest(memory_manifest([3, 4]), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidOption, match=message):
        load_manifest(path)
