"""A decoded table whose columns of numbers become Arrow arrays lazily equals the table of Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.decoded_table import DecodedTable, as_table, encoded, names_of, types_of
from forebay.data.parquet.reading import RowGroupReader

TABLE = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "x": np.arange(60, dtype=np.float32),
        "hole": pa.array([None, *range(59)], pa.int64()),
        "text": [str(number) for number in range(60)],
        "y": np.arange(60, dtype=np.float64),
        "user": [{"age": number, "zip": "z"} for number in range(60)],
    },
    metadata={"made": "here"},
)
SELECTIONS = [
    ["id", "x", "y"],
    ["y", "text", "id", "hole", "user", "x"],
    ["text"],
    ["hole", "text"],
    ["day", "x"],
    ["x", "text", "day", "id"],
    ["text", "day"],
    ["day"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kernels.load()
    (tmp_path / "day=3").mkdir()
    pq.write_table(TABLE, tmp_path / "day=3" / "a.parquet", row_group_size=40)
    return tmp_path


@pytest.mark.parametrize("columns", SELECTIONS, ids=",".join)
def test_tables_are_those_of_arrow(folder: Path, columns: list[str]) -> None:
    reader = RowGroupReader(fb.scan(str(folder)))
    expected = TABLE.append_column("day", pa.array([3] * 60, pa.int64())).slice(0, 40).select(columns)
    decoded = reader.decode_lazily(reader.fetch(0, columns))
    assert decoded.to_table().equals(expected, check_metadata=columns != ["day"])
    assert as_table(decoded).equals(reader.read(0, columns), check_metadata=True)
    assert decoded.num_rows == 40 and names_of(decoded) == tuple(columns)
    assert types_of(decoded) == types_of(expected) and list(decoded.types) == columns
    assert all(decoded[name].equals(expected[name]) for name in columns)


def test_addresses_are_those_of_numbers_of_the_type_without_nulls(folder: Path) -> None:
    reader = RowGroupReader(fb.scan(str(folder)))
    decoded = reader.decode_lazily(reader.fetch(0, ["x", "id", "hole", "text", "day"]))
    found = decoded.addresses(("id", "hole", "text", "day", "x", "nowhere"), pa.int64())
    values = decoded["id"].chunk(0)
    assert found.tolist() == [values.buffers()[1].address, 0, 0, 0, 0, 0]
    assert values.to_pylist() == list(range(40))
    found[:] = 7  # a caller's own
    assert decoded.addresses(("x", "id"), pa.float32()).tolist() == [decoded["x"].chunk(0).buffers()[1].address, 0]


def test_texts_keep_their_dictionary_for_what_does_not_depend_on_it(folder: Path) -> None:
    reader = RowGroupReader(fb.scan(str(folder)))
    decoded = reader.decode_lazily(reader.fetch(0, ["text", "id"]))
    kept = encoded(decoded, "text")
    assert kept.type == pa.dictionary(pa.int32(), pa.string())
    assert kept.cast(pa.string()).equals(decoded["text"])
    assert decoded.types["text"] == pa.string()
    assert encoded(decoded, "id").equals(decoded["id"])
    assert encoded(decoded.to_table(), "text").type == pa.string()
    added = decoded.with_columns({"also": decoded["id"]}, ["also", "text"])
    assert encoded(added, "text").equals(kept)


def test_a_table_of_arrow_has_no_addresses() -> None:
    table = DecodedTable(TABLE.column_names, TABLE)
    assert table.to_table() is TABLE and table.num_rows == 60
    assert not table.addresses(("id", "x"), pa.int64()).any()


def test_an_object_of_arrow_keeps_the_memory_of_its_table(write_table: Callable[..., Path]) -> None:
    kernels.load()
    reader = RowGroupReader(fb.scan(write_table("a.parquet", {"x": np.arange(5_000.0), "y": np.ones(5_000)}, 5_000)))
    column = reader.decode_lazily(reader.fetch(0))["x"]
    _ = [reader.decode_lazily(reader.fetch(0)) for _ in range(3)]
    assert column.to_pylist() == list(range(5_000))


def test_rows_are_counted_without_columns(folder: Path) -> None:
    reader = RowGroupReader(fb.scan(str(folder)))
    assert reader.decode_lazily(reader.fetch(1, [])).num_rows == 20
