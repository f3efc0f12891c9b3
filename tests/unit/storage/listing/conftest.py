"""Folders of empty files, and fsspec's file system in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest


@pytest.fixture
def touch(tmp_path: Path) -> Callable[..., Path]:
    """`touch("a.parquet", "x/b.parquet")` makes these files of one byte. Returns their folder."""

    def make(*names: str) -> Path:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return tmp_path

    return make


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """File system in the memory of this process, empty afterwards."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
