"""Bounds in a footer that are too short for their type are found before pyarrow decodes them and crashes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.data.parquet.footer import fetch_footer
from forebay.data.parquet.statistics import check_statistics
from forebay.data.sources.scan import scan
from forebay.errors import CorruptFile

BOUND = np.float64(1.2345678901234567).tobytes()


def check(path: Path) -> None:
    with pa.OSFile(str(path)) as file:
        check_statistics(str(path), fetch_footer(str(path), file), pq.read_metadata(path))


@pytest.fixture
def damaged(write_table: Callable[..., Path]) -> Path:
    """The bound of `x` has lost a byte, once as min and once as max of each kind."""
    path = write_table("a.parquet", {"x": [1.2345678901234567], "id": [1]}, use_dictionary=False)
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = whole[start:-8].replace(b"\x08" + BOUND, b"\x07" + BOUND[:-1])
    assert len(footer) < len(whole) - 8 - start
    path.write_bytes(whole[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def test_short_bounds_are_refused_when_they_are_needed(damaged: Path) -> None:
    with pytest.raises(CorruptFile, match="bound of 7 bytes instead of 8 of column 0.*without where="):
        scan(damaged, where="x > 1.0")
    assert scan(damaged).num_rows == 1


def test_it_is_still_needed(damaged: Path) -> None:
    """Once pyarrow raises an error of its own, the check can be removed."""
    look = f"import pyarrow.parquet as pq; pq.read_metadata({str(damaged)!r}).row_group(0).column(0).statistics"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, check=False)
    assert done.returncode < 0, "check_statistics is no longer needed"


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"write_page_index": True}, {"compression": "none"}]
)
def test_whole_files_pass(write_table: Callable[..., Path], options: dict[str, object]) -> None:
    columns = {
        "flag": [True, None, False],
        "id": [1, 2, None],
        "small": np.array([1, 2, 3], np.int8),
        "x": np.array([0.5, np.nan, 1.5], np.float32),
        "y": [0.5, None, 1.5],
        "text": ["", None, "b" * 100],
        "code": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
        "price": pa.array([1, 2, None], pa.decimal128(30, 2)),
        "tags": [[1], None, []],
        "both": [{"a": 1, "b": "x"}, None, {"a": None, "b": ""}],
        "nothing": pa.nulls(3),
        "at": pa.array([0, 1, None], pa.timestamp("ns")),
        **{f"c{number}": [number] * 3 for number in range(20)},
    }
    check(write_table("a.parquet", columns, 2, **options))
