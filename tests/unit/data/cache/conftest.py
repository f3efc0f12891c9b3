"""Blocks, keys and caches for the tests of the disk cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block


@pytest.fixture
def block_of() -> Callable[..., Block]:
    """`make(seed, rows=100) -> Block` of a float matrix and two more arrays, 84 bytes per row."""

    def make(seed: int = 0, rows: int = 100) -> Block:
        rng = np.random.default_rng(seed)
        return Block.of(
            {
                "dense": rng.standard_normal((rows, 19), dtype=np.float32),
                "ids": rng.integers(1000, size=rows),
                "label": rng.integers(2, size=rows).astype(bool),
            }
        )

    return make


@pytest.fixture
def key_of() -> Callable[[object], str]:
    return lambda name: hashlib.sha256(str(name).encode()).hexdigest()[:40]


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    """An empty cache with a quota of 16 MiB."""
    return DiskCache(tmp_path / "cache", quota_bytes=16 << 20, min_free_bytes=0)


@pytest.fixture
def same() -> Callable[[Block, Block], bool]:
    """Whether two blocks hold the same bytes under the same names."""

    def compare(left: Block, right: Block) -> bool:
        return left.schema == right.schema and all(
            left.arrays[name].tobytes() == right.arrays[name].tobytes() for name in left.arrays
        )

    return compare


@pytest.fixture
def disk_bytes() -> Callable[[Path], int]:
    """Size of a folder: the larger of the answer of `du` and the sum of the files' lengths."""

    def walk(folder: Path) -> dict[int, os.stat_result]:
        seen: dict[int, os.stat_result] = {}
        for top, folders, files in os.walk(folder):
            for name in [*folders, *files, "."]:
                try:
                    found = os.lstat(Path(top, name))
                except FileNotFoundError:
                    continue
                seen[found.st_ino] = found  # a file that was just renamed can be listed twice
        return seen

    def measure(folder: Path) -> int:
        first, second = walk(folder), walk(folder)
        # Files in both walks existed together: during one walk a file may go and another one come.
        seen = [found for inode, found in first.items() if inode in second]
        return max(sum(found.st_blocks * 512 for found in seen), sum(found.st_size for found in seen))

    return measure


@pytest.fixture
def left_over() -> Callable[[Path], list[str]]:
    """Names of unfinished files below a cache directory."""
    return lambda root: sorted(path.name for path in (root / "temp").iterdir())
