"""Lists decoded by the project's own kernel: equal to Arrow's, and what it does not know is left to Arrow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.parquet.written_pages import fetched, footer_of, written

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.column_decoders import decode_lists
from forebay.data.parquet.decoded_table import decode
from forebay.data.parquet.fetch import fetch

NUMBERS = ("int32", "uint32", "int64", "uint64", "float32", "float64")


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    kernels.load()


def _lists(dtype: str, rows: int, distinct: int, longest: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    return [rng.integers(distinct, size=size).astype(dtype) for size in rng.integers(longest + 1, size=rows)]


def _type(value: pa.DataType, *, large: bool = False, nullable: bool = True) -> pa.DataType:
    return (pa.large_list if large else pa.list_)(pa.field("element", value, nullable))


def _equal(pages: Any, expected: pa.Table) -> None:
    found = decode(pages).to_table()
    assert found.equals(expected, check_metadata=True)
    found.validate(full=True)


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(("distinct", "longest"), [(1, 1), (2, 40), (300, 3), (1 << 30, 0), (1 << 30, 9)])
def test_lists_are_decoded_as_by_arrow(
    tmp_path: Path, compression: str, dictionary: bool, distinct: int, longest: int
) -> None:
    fields, columns = [], []
    for k, dtype in enumerate(NUMBERS):
        for nullable in (True, False):
            kind = _type(pa.from_numpy_dtype(np.dtype(dtype)), large=k % 2 > 0, nullable=nullable != (k % 3 > 0))
            fields.append(pa.field(f"{dtype}-{nullable}", kind, nullable))
            columns.append(pa.array(_lists(dtype, 901, distinct, longest), kind))
    table = pa.table(columns, pa.schema(fields, {"made": "here"}))
    # Pages of 64 levels: the dictionary ends in the middle of a chunk, and lists go on from page to page.
    options = {"use_dictionary": dictionary, "data_page_size": 256, "dictionary_pagesize_limit": 2048}
    path = written(tmp_path, table, compression=compression, row_group_size=700, write_batch_size=64, **options)
    for index in range(2):
        pages, expected = fetched(path, index)
        # A column without any value has an empty dictionary, which Arrow reads.
        assert set(decode_lists(pages)) == (set(table.column_names) if longest or not dictionary else set())
        _equal(pages, expected)


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 63, 64, 65, 2_000])
def test_null_and_empty_lists(tmp_path: Path, rows: int) -> None:
    kinds = np.random.default_rng(rows).integers(4, size=rows)
    kinds[0] = 3
    lists = [[None, [], [5], [7, 8, 9]][kind] for kind in kinds]
    sparse = pa.array([None if each is None else each[:1] for each in lists], _type(pa.int32(), nullable=False))
    pages, expected = fetched(written(tmp_path, pa.table({"a": lists, "b": sparse})))
    assert set(decode_lists(pages)) == {"a", "b"}
    _equal(pages, expected)
    assert decode(pages)["a"].null_count == np.count_nonzero(kinds == 0)


def test_long_lists_over_many_pages(tmp_path: Path) -> None:
    lists = [list(range(size)) for size in (0, 5_000, 1, 0, 70_000, 64, 0)]
    options = {"data_page_size": 1_000, "write_batch_size": 100, "use_dictionary": False}
    pages, expected = fetched(written(tmp_path, pa.table({"x": lists}), **options))
    assert set(decode_lists(pages)) == {"x"}
    _equal(pages, expected)


_PART = pa.struct([pa.field("l", pa.list_(pa.int64()))])
_SHORT = [[1, 2], [3], []]
LEFT_TO_ARROW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a null in a list": ({"x": [*_SHORT * 700, [4, None]]}, {"data_page_size": 512, "write_batch_size": 100}),
    "nulls and null lists": ({"x": [[1, None], None, []] * 20}, {}),
    "only null lists": ({"x": pa.array([None] * 50, pa.list_(pa.int64()))}, {}),
    "another codec": ({"x": _SHORT * 20}, {"compression": "zstd"}),
    "checksums": ({"x": _SHORT * 20}, {"write_page_checksum": True}),
    "pages of version 2": ({"x": _SHORT * 20}, {"data_page_version": "2.0"}),
    "delta encoding": ({"x": _SHORT * 20}, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}),
    "narrow integers": ({"x": pa.array(_SHORT * 20, pa.list_(pa.int8()))}, {}),
    "bools": ({"x": [[True, False], []] * 20}, {}),
    "times": ({"x": pa.array(_SHORT * 20, pa.list_(pa.timestamp("us")))}, {}),
    "text": ({"x": [["a", "b"], []] * 20}, {}),
    "lists of lists": ({"x": [_SHORT] * 20}, {}),
    "lists of structs": ({"x": [[{"a": 1}], []] * 20}, {}),
    "lists in a struct": ({"x": pa.array([{"l": [1, 2]}] * 20, _PART)}, {}),
    "lists of one length": ({"x": pa.array([[1, 2], [3, 4]] * 20, pa.list_(pa.int64(), 2))}, {}),
    "maps": ({"x": pa.array([[(1, 2)], []] * 20, pa.map_(pa.int64(), pa.int64()))}, {}),
    "a name with a dot": ({"x.a": _SHORT * 4, "x": _SHORT * 4}, {}),
    "numbers": ({"x": range(20)}, {}),
    "no rows": ({"x": pa.array([], pa.list_(pa.int64()))}, {}),
}


@pytest.mark.parametrize("case", LEFT_TO_ARROW)
def test_the_rest_is_left_to_arrow(tmp_path: Path, case: str) -> None:
    columns, options = LEFT_TO_ARROW[case]
    table = pa.table({**columns, "plain": [[15, 25]] * len(next(iter(columns.values())))})
    pages, expected = fetched(written(tmp_path, table, **options))
    assert set(decode_lists(pages)) <= {"plain"}
    _equal(pages, expected)


@pytest.mark.parametrize("place", [1, 3], ids=["definition", "repetition"])
def test_levels_of_the_older_encoding_are_left_to_arrow(tmp_path: Path, place: int) -> None:
    path = written(tmp_path, pa.table({"x": _SHORT * 20}))
    assert set(decode_lists(fetched(path)[0])) == {"x"}
    stated = b"\x15\x06\x15\x06"  # both encodings of levels are RLE, as two fields of a page header
    content = path.read_bytes()
    assert content.count(stated) == 1
    path.write_bytes(content.replace(stated, stated[:place] + b"\x08" + stated[place + 1 :]))
    with pa.OSFile(str(path)) as file:
        assert not decode_lists(fetch(file, footer_of(path), 0, ["x"], local=True))


def test_selected_lists_come_in_the_order_asked_for(tmp_path: Path) -> None:
    table = pa.table({"a": _SHORT * 3, "b": list("abcdefghi"), "c": np.arange(9.0), "d": [[0.5]] * 9})
    with pa.OSFile(str(written(tmp_path, table))) as file:
        pages = fetch(file, footer_of(tmp_path / "a.parquet"), 0, ["d", "c", "b", "a"], local=True)
    assert decode(pages).to_table().equals(table.select(["d", "c", "b", "a"]))


def test_a_process_without_kernels_leaves_lists_to_arrow(tmp_path: Path) -> None:
    pages, _ = fetched(written(tmp_path, pa.table({"x": _SHORT})))
    assert set(decode_lists(pages)) == {"x"}
    assert not decode_lists(replace(pages, footer=replace(pages.footer, codecs=None)))


@settings(max_examples=25, deadline=None)
@given(
    lists=st.lists(st.none() | st.lists(st.integers(0, 3) | st.integers(-(1 << 31), (1 << 31) - 1)), min_size=1),
    repeat=st.integers(1, 40),
    options=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy"]),
            "use_dictionary": st.booleans(),
            "data_page_size": st.integers(1, 500),
            "write_batch_size": st.integers(1, 50),
        }
    ),
)
def test_any_lists(
    tmp_path_factory: pytest.TempPathFactory, lists: list[Any], repeat: int, options: dict[str, Any]
) -> None:
    rows = [each for each in lists for _ in range(repeat)] + [[1]]  # a dictionary is not empty
    table = pa.table({"a": rows, "b": pa.array(rows, pa.large_list(pa.int32())), "c": [each or [] for each in rows]})
    pages, expected = fetched(written(tmp_path_factory.mktemp("any"), table, **options))
    assert len(decode_lists(pages)) == 3
    _equal(pages, expected)
