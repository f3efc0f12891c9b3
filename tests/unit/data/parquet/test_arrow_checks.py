"""Times of 96 bits (INT96): each is read as it was written, or refused by file, row group and column."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import UnsupportedColumn

_FIRST, _LAST = np.iinfo(np.int64).min // 1000 + 1, np.iinfo(np.int64).max // 1000
"""Microseconds that nanoseconds of 64 bits hold."""
TEXTS = (
    "0001-01-01",
    "1000-06-15T12:00:00",
    "1677-09-21T00:12:43.145224",
    "1677-09-21T00:12:43.145226",
    "1969-12-31T23:59:59.999999",
    "1970-01-01",
    "2024-02-29T12:34:56.789012",
    "2262-04-11T23:47:16.854775",
    "2262-04-11T23:47:16.854776",
    "9999-12-31T23:59:59.999999",
)
KINDS: dict[str, tuple[Callable[[Any], Any], pa.DataType]] = {
    "flat": (lambda time: time, pa.timestamp("us")),
    "zoned": (lambda time: time, pa.timestamp("us", "Europe/Berlin")),
    "list": (lambda time: [None, time], pa.list_(pa.timestamp("us"))),
    "struct": (lambda time: {"n": 1, "at": time}, pa.struct({"n": pa.int64(), "at": pa.timestamp("us")})),
    "nested": (lambda time: [{"at": [time]}], pa.list_(pa.struct({"at": pa.list_(pa.timestamp("us"))}))),
    "map": (lambda time: [("k", time)], pa.map_(pa.string(), pa.timestamp("us"))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_time_is_read_as_it_was_written_or_refused(text: str, kind: str, tmp_path: Path) -> None:
    wrap, data_type = KINDS[kind]
    time = datetime.datetime.fromisoformat(text)
    micros = int(np.datetime64(time, "us").astype(np.int64))
    path = tmp_path / "a.parquet"
    values = [wrap(datetime.datetime(2000, 1, 1)), None, wrap(time)]
    table = pa.table({"at": pa.array(values, data_type), "id": [0, 1, 2]})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    reader = RowGroupReader(fb.scan(path, footers=False))
    assert reader.read(0, ["id"])["id"].to_pylist() == [0, 1, 2], "other columns do not matter"
    if _FIRST <= micros <= _LAST:
        assert reader.read(0)["at"].cast(data_type).to_pylist() == table["at"].to_pylist()
        return
    with pytest.raises(UnsupportedColumn, match=r"Row group 0 of .*a\.parquet: column 'at.*INT64") as caught:
        reader.read(0)
    assert text[:10] in str(caught.value)
    with pytest.raises(UnsupportedColumn, match="row 2" if kind == "flat" else "at"):
        fb.scan(path, where="at is not None" if kind != "flat" else "at >= '2000-01-01'", footers=False)
