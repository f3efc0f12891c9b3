"""Columns decoded by the project's own kernel: equal to Arrow's, and what it does not know is left to Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.parquet.written_pages import fetched, footer_of, written

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.column_decoders import decode_numbers
from forebay.data.parquet.decoded_table import decode
from forebay.data.parquet.fetch import fetch

Write = Callable[..., Path]

NUMBERS = ("int32", "uint32", "int64", "uint64", "float32", "float64")


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    kernels.load()


def _values(dtype: str, rows: int, distinct: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(distinct, size=rows).astype(dtype)


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("distinct", [1, 2, 300, 1 << 30])
def test_numbers_are_decoded_as_by_arrow(tmp_path: Path, compression: str, dictionary: bool, distinct: int) -> None:
    fields, columns = [], []
    for dtype in NUMBERS:
        for nullable in (True, False):
            fields.append(pa.field(f"{dtype}-{nullable}", pa.from_numpy_dtype(np.dtype(dtype)), nullable))
            columns.append(_values(dtype, 3_001, distinct))
    table = pa.table(columns, pa.schema(fields, {"made": "here"}))
    # Pages of 512 bytes: the dictionary ends in the middle of a chunk, plain pages follow.
    options = {"use_dictionary": dictionary, "data_page_size": 512, "dictionary_pagesize_limit": 4096}
    path = written(tmp_path, table, compression=compression, row_group_size=2_000, **options)
    for index in range(2):
        pages, expected = fetched(path, index)
        assert set(decode_numbers(pages).types) == set(table.column_names)
        assert decode(pages).to_table().equals(expected, check_metadata=True)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 504, 505, 65_537])
def test_all_numbers_of_rows(tmp_path: Path, rows: int) -> None:
    values = np.repeat(np.arange(rows // 20 + 1), 20)[:rows]  # long runs and short ones
    mixed = np.where(np.arange(rows) % 97 < 50, values, np.arange(rows) % 5)
    pages, expected = fetched(written(tmp_path, pa.table({"a": mixed, "b": mixed.astype(np.float32)})))
    assert set(decode_numbers(pages).types) == {"a", "b"}
    assert decode(pages).to_table().equals(expected)


_STRUCT = pa.struct([pa.field("a", pa.int64(), nullable=False)])
NULLS = pa.array([1, None, 3, 4] * 50)
LEFT_TO_ARROW = {
    "nulls": ({"x": NULLS}, {}),
    "a null in the last page": ({"x": pa.array([*range(5_000), None])}, {"data_page_size": 512}),
    "only nulls": ({"x": pa.array([None] * 100, pa.int64())}, {}),
    "another codec": ({"x": range(100)}, {"compression": "zstd"}),
    "checksums": ({"x": range(100)}, {"write_page_checksum": True}),
    "pages of version 2": ({"x": range(100)}, {"data_page_version": "2.0"}),
    "delta encoding": ({"x": range(100)}, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}),
    "split bytes": ({"x": np.arange(9.0)}, {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"}),
    "narrow integers": ({"x": np.arange(100, dtype=np.int8)}, {}),
    "half floats": ({"x": np.arange(100, dtype=np.float16)}, {}),
    "bools": ({"x": np.arange(100) % 3 == 0}, {}),
    "times": ({"x": pa.array(range(100), pa.timestamp("us"))}, {}),
    "dictionary type": ({"x": pa.array(["a", "b"] * 50).dictionary_encode()}, {}),
    "lists": ({"x": [[1, 2], [3], []] * 20}, {}),
    "parts of a struct": ({"x": [{"a": 1, "b": 2.0}] * 40}, {}),
    "a name with a dot": ({"x.a": range(10), "x": pa.array([{"a": 7}] * 10, _STRUCT)}, {}),
    "text": ({"x": ["a", "b"] * 30}, {}),
    "no rows": ({"x": pa.array([], pa.int64())}, {}),
}


@pytest.mark.parametrize("case", LEFT_TO_ARROW)
def test_the_rest_is_left_to_arrow(tmp_path: Path, case: str) -> None:
    columns, options = LEFT_TO_ARROW[case]
    table = pa.table({**columns, "plain": np.arange(len(next(iter(columns.values()))))})
    pages, expected = fetched(written(tmp_path, table, **options))
    assert set(decode_numbers(pages).types) <= {"plain"}
    assert decode(pages).to_table().equals(expected, check_metadata=True)


def test_levels_of_the_older_encoding_are_left_to_arrow(tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"x": range(100)}))
    stated = b"\x15\x06\x15\x06"  # both encodings of levels are RLE, as two fields of a page header
    content = path.read_bytes()
    assert content.count(stated) == 1
    path.write_bytes(content.replace(stated, b"\x15\x08\x15\x06"))
    with pa.OSFile(str(path)) as file:
        assert not decode_numbers(fetch(file, footer_of(path), 0, ["x"], local=True)).types


def test_selected_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    table = pa.table({"a": range(9), "b": list("abcdefghi"), "c": np.arange(9.0)})
    with pa.OSFile(str(written(tmp_path, table))) as file:
        pages = fetch(file, footer_of(tmp_path / "a.parquet"), 0, ["c", "b", "a"], local=True)
    assert decode(pages).to_table().equals(table.select(["c", "b", "a"]))


def test_fewer_values_than_the_footer_states_are_refused(tmp_path: Path) -> None:
    long = footer_of(written(tmp_path, pa.table({"x": range(100)}), use_dictionary=False))
    short = written(tmp_path, pa.table({"x": range(40)}), use_dictionary=False)
    with pa.OSFile(str(short)) as file:
        chunk = pq.read_metadata(short).row_group(0).column(0)
        content = file.read_at(chunk.total_compressed_size, chunk.data_page_offset)
    pages = fetch(pa.BufferReader(b"PAR1" + content + bytes(2_000)), long, 0, ["x"], local=True)
    assert not decode_numbers(pages).types
    with pytest.raises((OSError, pa.ArrowException)):
        decode(pages)


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 3), min_size=1, max_size=400),
    repeat=st.integers(1, 40),
    compression=st.sampled_from(["none", "snappy"]),
)
def test_any_values(tmp_path_factory: pytest.TempPathFactory, values: list[int], repeat: int, compression: str) -> None:
    numbers = np.repeat(np.array(values), repeat)
    table = pa.table({"a": numbers, "b": numbers.astype(np.int32), "c": numbers / 3})
    pages, expected = fetched(written(tmp_path_factory.mktemp("any"), table, compression=compression))
    assert len(decode_numbers(pages).types) == 3
    assert decode(pages).to_table().equals(expected)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_codecs_are_read_from_the_footer(tmp_path: Path, codec: str) -> None:
    table = pa.table({"x": range(10), "l": [[{"a": 1, "b": ["x", "y"]}]] * 10}, metadata={"k": "v" * 300})
    path = written(tmp_path, table, compression=codec, row_group_size=3, store_decimal_as_integer=True)
    codecs, metadata = footer_of(path).codecs, pq.read_metadata(path)
    assert codecs is not None and codecs.shape == (4, 3)
    numbers = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}
    assert (codecs == numbers[codec]).all() and metadata.row_group(0).column(0).compression in (
        codec.upper(),
        "UNCOMPRESSED",
    )
