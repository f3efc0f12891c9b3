"""The manifest as a value: identity, views, halves."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.data.manifest.manifest import Field, File, Manifest, RowGroup
from forebay.errors import InvalidOption

Make = Callable[..., Manifest]


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        root="/data/clicks",
        files=(File(path="a.parquet", size=10, mtime_ns=5), File(path="b/c.parquet", size=20, mtime_ns=6, etag="e")),
        fields=(Field(name="x", type="float", nullable=False), Field(name="y", type="int64")),
        columns=("x", "y"),
        file_of=[0, 0, 1],
        group_of=[0, 2, 1],
        rows=[3, 1, 5],
        bytes=[36, 12, 60],
        source_bytes=[30, 10, 50],
    )


def test_row_groups(manifest: Manifest) -> None:
    last = RowGroup(
        uri="/data/clicks/b/c.parquet", index=1, rows=5, bytes=60, file_size=20, file_mtime_ns=6, file_etag="e"
    )
    assert (len(manifest), manifest.num_rows, manifest.num_bytes) == (3, 9, 108)
    assert manifest[2] == manifest[-1] == last
    assert [(group.uri, group.index) for group in manifest] == [
        ("/data/clicks/a.parquet", 0),
        ("/data/clicks/a.parquet", 2),
        ("/data/clicks/b/c.parquet", 1),
    ]
    with pytest.raises(IndexError):
        manifest[3]


def test_the_id_is_pinned(manifest: Manifest) -> None:
    assert manifest.id == "5caf8c04e386a33870ee8c8b3cbe570bcd2b03dd88c096df177645dce5ee292a"


def test_the_id_leaves_out_the_place_and_nothing_else(manifest: Manifest) -> None:
    assert replace(manifest, root="s3://elsewhere/clicks") == manifest
    first, second = manifest.files
    others = [
        replace(manifest, files=(replace(first, path="A.parquet"), second)),
        replace(manifest, files=(replace(first, size=11), second)),
        replace(manifest, files=(replace(first, mtime_ns=7), second)),
        replace(manifest, files=(replace(first, etag="f"), second)),
        replace(manifest, group_of=[0, 1, 1]),
        replace(manifest, rows=[3, 2, 4]),
        replace(manifest, columns=("x",)),
        replace(manifest, fields=(replace(manifest.fields[0], type="double"), manifest.fields[1])),
        manifest.take([0, 2]),
    ]
    assert len({manifest.id, *(other.id for other in others)}) == 1 + len(others)


def test_nothing_can_be_changed(manifest: Manifest) -> None:
    rows = np.array([3, 1, 5])
    copy = replace(manifest, rows=rows)
    rows[0] = 99
    assert copy == manifest
    with pytest.raises(ValueError, match="read-only"):
        manifest.rows[0] = 4
    with pytest.raises(FrozenInstanceError):
        manifest.root = "/"  # type: ignore[misc]


def test_pickling_keeps_everything(manifest: Manifest) -> None:
    copy = pickle.loads(pickle.dumps(manifest))
    assert (copy.id, copy.root, copy.fields, hash(copy)) == (
        manifest.id,
        manifest.root,
        manifest.fields,
        hash(manifest),
    )
    assert copy.bytes.tolist() == manifest.bytes.tolist()
    assert not copy.rows.flags.writeable
    assert [copy.file_of.dtype, copy.group_of.dtype] == [np.int32] * 2
    assert [copy.rows.dtype, copy.bytes.dtype, copy.source_bytes.dtype] == [np.int64] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_of": [2, 0, 1]},
        {"group_of": [0, 0, 1]},
        {"file_of": [0, 1, 0]},
        {"file_of": [0, 0, 0], "group_of": [0, 1, 2]},
        {"rows": [1, 2]},
        {"files": (File(path="b", size=1, mtime_ns=1), File(path="a", size=1, mtime_ns=1))},
    ],
)
def test_a_broken_order_is_a_bug(manifest: Manifest, wrong: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        replace(manifest, **wrong)


@pytest.mark.parametrize(
    ("root", "uri"),
    [
        ("/data", "/data/x/a.parquet"),
        ("/", "/x/a.parquet"),
        ("", "x/a.parquet"),
        ("/odd?name", "/odd?name/x/a.parquet"),
        ("s3://b", "s3://b/x/a.parquet"),
        ("s3://b/d?region=x&scheme=http", "s3://b/d/x/a.parquet?region=x&scheme=http"),
    ],
)
def test_uris(manifest: Manifest, root: str, uri: str) -> None:
    assert replace(manifest, root=root).uri_of(File(path="x/a.parquet", size=1, mtime_ns=1)) == uri


def test_take_drops_files_that_are_not_needed(manifest: Manifest) -> None:
    part = manifest.take([2])
    assert (part.files, part.file_of.tolist(), part[0]) == (manifest.files[1:], [0], manifest[2])
    assert manifest.take([2, 0]) == manifest.take(np.array([True, False, True])) == manifest.take([0, 2])
    assert manifest.take([0, 1, 2]) == manifest
    assert len(manifest.take([])) == 0


@pytest.mark.parametrize("indices", [[0, 0], [3], [-1]])
def test_take_refuses_row_groups_that_are_not_there_or_twice(manifest: Manifest, indices: list[int]) -> None:
    with pytest.raises(InvalidOption, match="distinct row groups from 0 to 2"):
        manifest.take(indices)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rows=st.lists(st.integers(1, 50), min_size=2, max_size=40),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**64),
)
def test_split_is_a_partition_near_the_fraction(
    memory_manifest: Make, rows: list[int], fraction: float, seed: int
) -> None:
    manifest = memory_manifest(rows)
    rest, held_out = manifest.split(fraction, seed)
    groups = [(group.uri, group.index) for group in manifest]
    assert sorted((group.uri, group.index) for half in (rest, held_out) for group in half) == sorted(groups)
    assert len(rest) > 0 < len(held_out)
    assert abs(held_out.num_rows - fraction * manifest.num_rows) <= max(rows)
    assert manifest.split(fraction, seed)[1] == held_out


def test_splits_differ_by_seed_and_nest_by_fraction(memory_manifest: Make) -> None:
    manifest = memory_manifest([10] * 100)
    chosen = {seed: manifest.split(0.2, seed)[1] for seed in range(8)}
    assert len({held_out.id for held_out in chosen.values()}) == 8
    assert all(len(held_out) == 20 for held_out in chosen.values())
    small = {(group.uri, group.index) for group in manifest.split(0.1)[1]}
    assert small < {(group.uri, group.index) for group in chosen[0]}


def test_a_split_is_the_same_for_ever(memory_manifest: Make) -> None:
    assert memory_manifest([10] * 12, groups_per_file=12).split(0.3, seed=7)[1].group_of.tolist() == [4, 7, 8, 9]


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, float("nan")])
def test_split_refuses_fractions_that_leave_nothing(memory_manifest: Make, fraction: float) -> None:
    with pytest.raises(InvalidOption, match="between 0 and 1"):
        memory_manifest([1, 2]).split(fraction)


def test_split_needs_two_row_groups(memory_manifest: Make) -> None:
    with pytest.raises(InvalidOption, match="row_group_size") as caught:
        memory_manifest([100]).split(0.5)
    assert memory_manifest([100]).files[0].path in str(caught.value)
    with pytest.raises(InvalidOption, match="has 0 row group"):
        memory_manifest([100, 100]).take([]).split(0.5)
    with pytest.raises(InvalidOption, match="fraction='0.1': hold out a share"):
        memory_manifest([1, 2]).split("0.1")  # type: ignore[arg-type]


def test_a_million_row_groups_are_cheap() -> None:
    count, per_file = 1_000_000, 100
    numbers = np.arange(count)
    files = tuple(File(path=f"{number:06d}", size=1, mtime_ns=1) for number in range(count // per_file))
    columns = {name: np.full(count, 7) for name in ("rows", "bytes", "source_bytes")}
    tracemalloc.start()
    start = time.thread_time()
    manifest = Manifest(
        root="/d", files=files, fields=(), columns=("x",), file_of=numbers // per_file, group_of=numbers % per_file,
        **columns,
    )  # fmt: skip
    assert manifest.id == manifest.id
    assert manifest[-1].index == 99
    assert sum(len(half) for half in manifest.split(0.1)) == count
    seconds = time.thread_time() - start
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5.0  # about 0.5 s; a loop in Python over row groups takes longer
    assert peak_bytes < 200e6


def test_the_manifest_is_pure() -> None:
    """It must load without storage, Arrow and a clock."""
    forbidden = ["pyarrow", "torch", "ray", "forebay.storage", "fsspec"]
    program = f"import sys, forebay.data.manifest.manifest; print([m for m in {forbidden} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )
