"""A dataset whose batches have equal parts in worlds of 1, 2 and 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import forebay as fb

NUM_ROWS = 400
GLOBAL_BATCH = 32
"""Twelve batches an epoch, 16 rows are dropped."""


@pytest.fixture
def folder(parquet_folder: Callable[..., Path]) -> str:
    return str(parquet_folder({"a.parquet": [100, 60], "b.parquet": [40, 200]}))


@pytest.fixture
def data(folder: str) -> fb.Data:
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "x1"]), labels=fb.Label("x1"))
    plan = fb.build_plan(fb.scan(folder), seed=7)
    return fb.Data(plan=plan, transform=transform, global_batch=GLOBAL_BATCH, last="drop")


@pytest.fixture
def open_loader(data: fb.Data) -> Callable[..., fb.Loader]:
    """Function that opens the loader of one rank."""

    def open_one(rank: int = 0, size: int = 1, **options: object) -> fb.Loader:
        sizes = {name: options.pop(name) for name in ("global_batch", "last") if name in options}
        return fb.Loader(replace(data, **sizes), world=fb.World(rank=rank, size=size), **options)  # type: ignore[arg-type]

    return open_one


@pytest.fixture
def calm_ids(open_loader: Callable[..., fb.Loader]) -> list[list[int]]:
    """Sorted row ids of each global batch of two epochs without an interruption."""
    with open_loader() as loader:
        return [sorted(batch["id"].tolist()) for _ in range(2) for batch in loader]
