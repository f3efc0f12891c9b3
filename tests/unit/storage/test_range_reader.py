"""A file over ranged reads."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from forebay.storage.range_reader import RangeReader

CONTENT = bytes(range(100))


class Memory(RangeReader):
    """A file in memory that notes the ranges read."""

    def __init__(self) -> None:
        super().__init__(len(CONTENT))
        self.ranges: list[tuple[int, int]] = []

    def read_range(self, start: int, stop: int) -> bytes:
        self.ranges.append((start, stop))
        return CONTENT[start:stop]


def test_each_read_is_one_range() -> None:
    file = Memory()
    assert file.read(10) == CONTENT[:10]
    assert file.tell() == 10
    assert file.readall() == CONTENT[10:]
    assert file.ranges == [(0, 10), (10, 100)]


@pytest.mark.parametrize("position", [95, 100, 200])
def test_no_byte_past_the_end_is_asked_for(position: int) -> None:
    file = Memory()
    file.seek(position)
    assert file.read(50) == CONTENT[position:]
    assert all(stop <= len(CONTENT) for _, stop in file.ranges)


def test_seek_is_as_in_io() -> None:
    file = Memory()
    assert file.seek(20) == 20
    assert file.seek(5, os.SEEK_CUR) == 25
    assert file.seek(-10, os.SEEK_END) == 90
    assert file.seek(-500, os.SEEK_CUR) == 0


def test_pyarrow_reads_at_any_position() -> None:
    file = pa.PythonFile(Memory(), mode="r")
    assert file.size() == 100
    assert file.read_at(5, 50) == CONTENT[50:55]
