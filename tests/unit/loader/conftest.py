"""A small data set with uneven row groups, and fixtures to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import forebay as fb

# Uneven, one-row and empty row groups, and a file without row groups.
FILES = {"a.parquet": [30, 1, 0, 50], "b.parquet": [], "c.parquet": [7, 64], "d.parquet": [1, 1, 22]}
NUM_ROWS = 176


@dataclass(frozen=True)
class Small:
    """The data set with its plan. `loader(...)` fills in the rest."""

    folder: Path
    manifest: fb.Manifest
    plan: fb.Plan
    transform: fb.Transform

    def loader(self, cache: fb.DiskCache | None = None, *, global_batch: int = 16, **options: object) -> fb.Loader:
        return fb.Loader(self.plan, self.transform, cache, global_batch=global_batch, **options)  # type: ignore[arg-type]


@pytest.fixture
def small(request: pytest.FixtureRequest, parquet_folder: Callable[..., Path]) -> Small:
    """All rows, or those of the row filter that is the fixture's parameter."""
    folder = parquet_folder(FILES)
    manifest = fb.scan(str(folder), where=getattr(request, "param", None))
    transform = fb.Transform(
        id=fb.Label("id", dtype="int64"),
        dense=fb.Dense(["x0", "x1"]),
        tags=fb.Ragged("tags", max_len=3),
        all_tags=fb.Ragged("tags", padded=False),
    )
    return Small(folder, manifest, fb.build_plan(manifest, seed=7, lanes=6, window_rows=16), transform)


@pytest.fixture
def cache(tmp_path: Path) -> fb.DiskCache:
    return fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)


def ids_of(batches: object) -> list[list[int]]:
    """Row ids of each batch, without rows of weight 0. Compares lists without padding with those of the file."""
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
