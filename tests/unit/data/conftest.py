"""A small dataset with uneven row groups, Parquet files, and ways to damage them unseen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.storage.retry import ReadPolicy

# Uneven, one-row and empty row groups, and a file without row groups.
FILES = {"a.parquet": [30, 1, 0, 50], "b.parquet": [], "c.parquet": [7, 64], "d.parquet": [1, 1, 22]}
NUM_ROWS = 176


@dataclass(frozen=True)
class Small:
    """The dataset with its plan. `loader(...)` fills in the rest."""

    folder: Path
    manifest: fb.Manifest
    plan: fb.Plan
    transform: fb.Transform

    def loader(self, cache: fb.DiskCache | None = None, *, global_batch: int = 16, **options: object) -> fb.Loader:
        return fb.Loader(self.plan, self.transform, cache, global_batch=global_batch, **options)  # type: ignore[arg-type]


@pytest.fixture
def small(request: pytest.FixtureRequest, parquet_folder: Callable[..., Path]) -> Small:
    """All rows, or the rows of the filter that is the fixture's parameter."""
    folder = parquet_folder(FILES)
    manifest = fb.scan(str(folder), where=getattr(request, "param", None))
    transform = fb.Transform(
        id=fb.Label("id", dtype="int64"),
        dense=fb.Dense(["x0", "x1"]),
        tags=fb.Ragged("tags", max_len=3),
        all_tags=fb.Ragged("tags", padded=False),
    )
    return Small(folder, manifest, fb.build_plan(manifest, seed=7, lanes=6, shuffle_rows=16), transform)


@pytest.fixture
def cache(tmp_path: Path) -> fb.DiskCache:
    return fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)


def ids_of(batches: object) -> list[list[int]]:
    """Row ids of each batch, without rows of weight 0. Compares lists without padding with the file's."""
    found = []
    for batch in batches:  # type: ignore[attr-defined]
        ids = np.asarray(batch["id"]).tolist()
        if "all_tags" in batch:
            lists = [list(range(each, each + each % 5)) for each in ids]
            assert np.asarray(batch["all_tags"]).tolist() == sum(lists, [])
            assert np.asarray(batch["all_tags_lengths"]).tolist() == [len(each) for each in lists]
        found.append(ids if batch.weight else [])
    return found


@pytest.fixture
def epoch_ids() -> Callable[[object], list[list[int]]]:
    return ids_of


@pytest.fixture(scope="session")
def quick() -> ReadPolicy:
    """Three attempts with almost no waits."""
    return ReadPolicy(attempts=3, deadline_s=60.0, first_wait_s=0.001, max_wait_s=0.002)


@pytest.fixture
def write_table(tmp_path: Path) -> Callable[..., Path]:
    """`write("a.parquet", {"x": [1, 2]}, rows_per_group=1) -> Path` below the test's own folder `data`."""

    def write(name: str, columns: dict[str, object] | pa.Table, rows_per_group: int = 100, **options: object) -> Path:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, path, row_group_size=rows_per_group, **options)
        return path

    return write


@pytest.fixture
def alter() -> Callable[..., None]:
    """`alter(path, {position: xor mask})` flips bits in place and keeps size and modification time.

    Only `manifest.for_copies()` is then read to the flipped bits.
    """

    def flip(path: Path, masks: dict[int, int]) -> None:
        before = path.stat()
        content = bytearray(path.read_bytes())
        for position, mask in masks.items():
            content[position] ^= mask
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return flip
