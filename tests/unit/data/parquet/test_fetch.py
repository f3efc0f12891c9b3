"""Byte ranges that are fetched of a row group."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forebay.data.parquet.decoded_table import decode
from forebay.data.parquet.fetch import FetchedFile, _runs, fetch
from forebay.data.parquet.footer import Footer

Write = Callable[..., Path]


class CountedFile:
    """Reads of a real file, counted."""

    def __init__(self, path: Path, *, short_by: int = 0) -> None:
        self._file = pa.OSFile(str(path))
        self._short_by = short_by
        self.ranges: list[tuple[int, int]] = []

    def size(self) -> int:
        return self._file.size()

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        self.ranges.append((self._file.tell(), nbytes))
        return self._file.read_buffer(nbytes - self._short_by)

    def readinto(self, target: NDArray[np.uint8]) -> int:
        self.ranges.append((self._file.tell(), target.nbytes))
        return int(self._file.readinto(target[: target.nbytes - self._short_by]))


@pytest.fixture
def file(write_table: Write) -> Path:
    columns = {f"x{i}": np.random.default_rng(i).random(5_000) for i in range(6)}
    return write_table("a.parquet", columns, 2_000, compression="none", use_dictionary=False)


def test_neighbours_are_read_at_once_and_other_columns_not_at_all(file: Path) -> None:
    footer, counted = Footer(pq.read_metadata(file), None), CountedFile(file)
    pages = fetch(counted, footer, 1, ["x1", "x2", "x5"], local=True)
    assert decode(pages).to_table().equals(pq.ParquetFile(file).read_row_group(1, ["x1", "x2", "x5"]))
    assert len(counted.ranges) == 2
    assert pages.source_bytes <= sum(nbytes for _, nbytes in counted.ranges) <= pages.source_bytes + 200


def test_over_a_network_small_holes_are_read_along(file: Path) -> None:
    footer, counted = Footer(pq.read_metadata(file), None), CountedFile(file)
    pages = fetch(counted, footer, 2, ["x5", "x0"], local=False)
    assert decode(pages).names == ("x5", "x0")
    assert len(counted.ranges) == 1 and pages.source_bytes < counted.ranges[0][1] / 2


@pytest.mark.parametrize("local", [True, False])
def test_fewer_bytes_than_asked_for_are_an_error_of_the_storage(file: Path, local: bool) -> None:
    with pytest.raises(OSError, match=r"\d+ of \d+ bytes came from byte 4 on"):
        fetch(CountedFile(file, short_by=1), Footer(pq.read_metadata(file), None), 0, ["x0"], local=local)


def test_what_was_not_fetched_cannot_be_read() -> None:
    fetched = FetchedFile(100, [(10, pa.py_buffer(b"abcdef")), (50, pa.py_buffer(b"xyz"))])
    fetched.seek(12)
    assert bytes(fetched.read(3)) == b"cde" and fetched.tell() == 15
    fetched.seek(-50, 2)
    assert bytes(fetched.read(3)) == b"xyz"
    for start in (8, 14, 52):
        fetched.seek(start)
        with pytest.raises(OSError, match=f"bytes {start} to {start + 4}"):
            fetched.read(4)


def test_addresses_of_fetched_places() -> None:
    parts = [(10, pa.py_buffer(b"abcdef")), (50, pa.py_buffer(b"xyz"))]
    places = np.array([(12, 15), (50, 53), (10, 16), (9, 12), (14, 17), (15, 14), (30, 31)], np.int64)
    first, second = (part.address for _, part in parts)
    assert FetchedFile(100, parts).addresses(places).tolist() == [first + 2, second, first, 0, 0, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8, unique_by=lambda place: place[0]),
    st.integers(0, 9),
)
def test_runs_hold_every_chunk_and_join_what_is_near(found: list[tuple[int, int]], hole_bytes: int) -> None:
    places = np.array([(1000 * start, 1000 * (start + size)) for start, size in found], np.int64).reshape(-1, 2)
    runs = _runs(places, 70_000, hole_bytes=1000 * hole_bytes)
    for start, stop in places.tolist():
        assert any(run.start <= start and min(stop, 70_000) <= run.stop <= 70_000 for run in runs)
    for run, following in pairwise(runs):
        assert following.start - run.stop > 1000 * hole_bytes
    starts = sorted(places[:, 0].tolist())
    assert all(run.start in starts for run in runs)
    gaps = [after - max(stop for start, stop in places.tolist() if start < after) for after in starts[1:]]
    assert len(runs) == (1 + sum(gap > 1000 * hole_bytes + 100 for gap in gaps) if starts else 0)
