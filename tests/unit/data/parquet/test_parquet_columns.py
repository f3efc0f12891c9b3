from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.footer import FooterCache
from forebay.data.parquet.parquet_columns import ParquetColumns, columns_of
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan


@pytest.fixture
def columns(tmp_path: Path) -> ParquetColumns:
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "s": [{"f": 1.0, "g": 2.0}] * 2,
            "x": pa.array([1.0, 2.0], pa.float32()),
            "small": pa.array([1, 2], pa.int8()),
            "t": pa.array([1, 2], pa.timestamp("us")),
            "a.b": [1, 2],
            "l": [[1], [2]],
        },
        metadata={"made": "here"},
    )
    pq.write_table(table, tmp_path / "a.parquet")
    return ParquetColumns(pq.read_metadata(tmp_path / "a.parquet"))


def test_numbers_are_columns_whose_items_have_the_size_that_is_stored(columns: ParquetColumns) -> None:
    found = columns.numbers((0, 1, 3))
    assert [each[0] for each in found.columns] == ["x", "id"], "columns of 4 bytes come first"
    assert found.groups == ((4, slice(0, 1)), (8, slice(1, 2)))
    assert found.chunks.tolist() == [2, 0] and found.leaves.tolist() == [3, 0] and found.is_optional.tolist() == [1, 1]


def test_places_of_numbers_are_those_of_one_type(columns: ParquetColumns) -> None:
    found = columns.numbers((0, 1, 3))
    assert found.indices(("id", "x", "s"), pa.float32()).tolist() == [-1, 0, -1]
    assert found.indices(("id", "x", "s"), pa.int64()).tolist() == [1, -1, -1]


def test_lists_know_the_level_of_their_values(columns: ParquetColumns, tmp_path: Path) -> None:
    leaves = tuple(range(8))
    assert [each and (each.name, each.level) for each in columns.lists(leaves)] == [None] * 7 + [("l", 3)]
    numbers = pa.list_(pa.field("element", pa.int32(), nullable=False))
    schema = pa.schema(
        [pa.field("some", numbers), pa.field("all", numbers, nullable=False), ("x", pa.list_(pa.int8()))]
    )
    pq.write_table(schema.empty_table(), tmp_path / "b.parquet")
    found = ParquetColumns(pq.read_metadata(tmp_path / "b.parquet")).lists((0, 1, 2))
    assert found == (("some", numbers, 4, True, 2), ("all", numbers, 4, False, 1), None)


def test_tops_of_paths_are_columns_of_the_file(columns: ParquetColumns) -> None:
    assert columns.tops(("x", "s.g", "a.b", "of another file")) == {
        "x": "x", "s.g": "s", "a.b": "a.b", "of another file": "of another file"
    }  # fmt: skip


def test_column_chunks_of_columns_and_paths(columns: ParquetColumns) -> None:
    assert columns.leaves(["x", "s"]) == (1, 2, 3)
    assert columns.leaves(["s.g"]) == (2,)
    assert columns.leaves([]) == ()


def test_schema_of_some_columns_keeps_their_order_and_the_metadata(columns: ParquetColumns) -> None:
    assert columns.schema_of(["x", "id"]).names == ["x", "id"]
    assert columns.schema_of(["x"]).metadata == columns.schema.metadata
    assert columns.names == {"id", "s", "x", "small", "t", "a.b", "l"}


def test_row_groups_of_a_file_share_the_answers(write_table: Callable[..., Path]) -> None:
    kernels.load()
    path = write_table("a.parquet", {f"x{i}": np.arange(30.0) for i in range(5)}, 10)
    reader = RowGroupReader(scan(path), footers=FooterCache())
    fetched = [reader.fetch(index) for index in range(3)]
    first = fetched[0].pages.footer.columns
    assert all(each.pages.footer.columns is first for each in fetched)
    assert first.schema_of(fetched[0].columns) is first.schema_of(fetched[0].columns)


def _written(path: Path, schema: pa.Schema, **options: object) -> pq.FileMetaData:
    pq.write_table(schema.empty_table(), path, **options)
    return pq.read_metadata(path)


def test_files_of_one_flat_schema_share_their_facts(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.float32()), ("id", pa.int64())])
    first = columns_of(_written(tmp_path / "a.parquet", schema))
    assert columns_of(_written(tmp_path / "b.parquet", schema)) is first


_LEAF, _GROUP = pa.schema([("x", pa.int32())]), pa.struct([("x", pa.int32())])


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([("x", pa.int64())]),
        pa.schema([("x", pa.uint32())]),
        pa.schema([("y", pa.int32())]),
        pa.schema([pa.field("x", pa.int32(), nullable=False)]),
        pa.schema([("x", pa.int32()), ("y", pa.int32())]),
        pa.schema([pa.field("s", _GROUP, nullable=False)]),
    ],
    ids=str,
)
def test_files_of_other_schemas_share_nothing(tmp_path: Path, other: pa.Schema) -> None:
    mine = _written(tmp_path / "a.parquet", _LEAF, store_schema=False)
    theirs = _written(tmp_path / "b.parquet", other, store_schema=False)
    for first, second in ((mine, theirs), (theirs, mine)):
        assert columns_of(first) is not columns_of(second)
        assert columns_of(second).schema.equals(second.schema.to_arrow_schema(), check_metadata=True)


def test_files_with_other_metadata_share_nothing(tmp_path: Path) -> None:
    bare = _written(tmp_path / "a.parquet", _LEAF, store_schema=False)
    first, second = (_written(tmp_path / f"{n}.parquet", _LEAF.with_metadata({"made": n})) for n in ("here", "there"))
    assert len({id(columns_of(each)) for each in (bare, first, second)}) == 3, "it names types of Arrow"


def test_columns_in_groups_are_compared_by_nobody(tmp_path: Path) -> None:
    schema = pa.schema([("s", _GROUP)])
    first, second = (_written(tmp_path / name, schema) for name in ("a.parquet", "b.parquet"))
    assert columns_of(first) is not columns_of(second)
