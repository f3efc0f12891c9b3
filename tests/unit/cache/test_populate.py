"""Mapped pages that are there before they are touched."""

from __future__ import annotations

import mmap
import platform
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.cache.populate import populate


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def touched(memory: pa.Buffer) -> int:
    before = faults()
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE].sum()
    return faults() - before


@pytest.mark.skipif(
    platform.system() != "Linux" or tuple(map(int, platform.release().split(".")[:2])) < (5, 14),
    reason="only Linux from 5.14 on can populate a map",
)
def test_a_populated_map_is_read_without_page_faults(tmp_path: Path) -> None:
    path, num_bytes = tmp_path / "block", 64 << 20
    path.write_bytes(bytes(num_bytes))
    with pa.memory_map(str(path)) as file:
        plain = file.read_buffer()
    with pa.memory_map(str(path)) as file:
        populated = file.read_buffer()
    populate(populated.address + 100, populated.size - 200)  # any address, as of an array within the map
    assert touched(plain) > 16, "else this says nothing"
    assert touched(populated) <= 4


def test_what_cannot_be_populated_is_left_alone() -> None:
    populate(0, 1 << 20)
    populate((1 << 46) + 5, 123)
