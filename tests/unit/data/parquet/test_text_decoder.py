"""Texts decoded by the project's own kernel: equal to Arrow's, and what it does not know is left to Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.parquet.written_pages import fetched, footer_of, written

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.column_decoders import decode_texts
from forebay.data.parquet.decoded_table import decode
from forebay.data.parquet.fetch import fetch

TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    kernels.load()


def _equal(pages: Any, expected: pa.Table) -> None:
    found = decode(pages).to_table()
    assert found.equals(expected, check_metadata=True)
    found.validate(full=True)


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("distinct", [1, 2, 300])
def test_texts_are_decoded_as_by_arrow(tmp_path: Path, compression: str, distinct: int) -> None:
    numbers = np.random.default_rng(distinct).integers(distinct, size=3_001)
    texts = ["é" * (number % 7) + str(number)[1:] for number in numbers.tolist()]
    fields = [pa.field(f"{kind}-{nullable}", kind, nullable) for kind in TYPES for nullable in (True, False)]
    table = pa.table([pa.array(texts).cast(field.type) for field in fields], pa.schema(fields, {"made": "here"}))
    path = written(tmp_path, table, compression=compression, row_group_size=2_000, data_page_size=512)
    for index in range(2):
        pages, expected = fetched(path, index)
        decoded = decode_texts(pages)
        assert set(decoded) == set(table.column_names)
        assert all(len(each.dictionary) <= distinct for each in decoded.values())
        _equal(pages, expected)


LEFT_TO_ARROW: dict[str, tuple[Any, dict[str, Any]]] = {
    "a null": ([*["a", "b"] * 50, None], {}),
    "only nulls": (pa.array([None] * 50, pa.string()), {}),
    "plain texts": (["a", "b"] * 50, {"use_dictionary": False}),
    "only empty plain texts": ([""] * 50, {"use_dictionary": False}),
    "a dictionary that became too large": (
        [f"{number:09}" for number in range(3_000)],
        {"dictionary_pagesize_limit": 1_000, "data_page_size": 500, "write_batch_size": 100},
    ),
    "another codec": (["a", "b"] * 50, {"compression": "zstd"}),
    "checksums": (["a", "b"] * 50, {"write_page_checksum": True}),
    "pages of version 2": (["a", "b"] * 50, {"data_page_version": "2.0"}),
    "texts in lists": ([["a", "b"], []] * 50, {}),
    "texts in a struct": ([{"a": "x"}] * 50, {}),
    "dictionary type": (pa.array(["a", "b"] * 50).dictionary_encode(), {}),
    "bytes of one length": (pa.array([b"ab", b"cd"] * 50, pa.binary(2)), {}),
    "decimals": (pa.array([1, 2] * 50).cast(pa.decimal128(30)), {}),
    "numbers": (range(100), {}),
    "no rows": (pa.array([], pa.string()), {}),
}


@pytest.mark.parametrize("case", LEFT_TO_ARROW)
def test_the_rest_is_left_to_arrow(tmp_path: Path, case: str) -> None:
    column, options = LEFT_TO_ARROW[case]
    pages, expected = fetched(written(tmp_path, pa.table({"x": column, "a.b": column}), **options))
    assert not decode_texts(pages)
    _equal(pages, expected)


def test_texts_for_more_than_one_array_of_arrow_are_left_to_it(tmp_path: Path) -> None:
    long = "x" * 70_000
    few = written(tmp_path, pa.table({"x": [long, "y"] * 100}))
    assert set(decode_texts(fetched(few)[0])) == {"x"}
    many = written(tmp_path, pa.table({"x": [long, *["y"] * 40_000]}))  # 2.8 GB, were all as long
    pages, expected = fetched(many)
    assert not decode_texts(pages)
    _equal(pages, expected)


def test_text_that_is_not_utf_8_is_an_error_of_arrow(tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"x": ["right", "wrong"] * 20}), compression="none")
    content = path.read_bytes()
    start = pq.read_metadata(path).row_group(0).column(0).dictionary_page_offset
    at = content.index(b"wrong", start)
    path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    with pa.OSFile(str(path)) as file:
        pages = fetch(file, footer_of(path), 0, ["x"], local=True)
    assert not decode_texts(pages)
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        decode(pages)


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=60),
    repeat=st.integers(1, 40),
    compression=st.sampled_from(["none", "snappy"]),
)
def test_any_texts(tmp_path_factory: pytest.TempPathFactory, texts: list[str], repeat: int, compression: str) -> None:
    column = pa.array([text.replace("\x00", "") for text in texts for _ in range(repeat)])
    table = pa.table({"a": column, "b": column.cast(pa.large_binary())})
    pages, expected = fetched(written(tmp_path_factory.mktemp("any"), table, compression=compression))
    assert len(decode_texts(pages)) == 2
    _equal(pages, expected)
