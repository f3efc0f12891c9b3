"""Parquet files that carry page checksums, and ways to damage them unseen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.storage.retry import ReadPolicy


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
    """`alter(path, {position: xor mask})` flips bits in place and keeps size and modification time."""

    def flip(path: Path, masks: dict[int, int]) -> None:
        before = path.stat()
        content = bytearray(path.read_bytes())
        for position, mask in masks.items():
            content[position] ^= mask
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return flip
