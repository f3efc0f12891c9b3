"""Strings and binary values as bytes: every value comes back unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay.errors import InvalidOption, WrongType

TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
FEATURE = fb.Bytes("c", max_len=12)


@given(
    values=st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=6),
    kind=st.sampled_from(TYPES),
    is_encoded=st.booleans(),
    cut=st.integers(0, 6),
)
def test_every_value_comes_back(values: list[str | None], kind: pa.DataType, is_encoded: bool, cut: int) -> None:
    array = pa.array(["skipped", *values], pa.string()).cast(kind)[1:]
    chunks = [array[:cut], array[cut:]]
    if is_encoded and "view" not in str(kind):
        chunks = [chunk.dictionary_encode() for chunk in chunks]
    block = fb.Transform(key=FEATURE).apply(pa.table({"c": pa.chunked_array(chunks)}))
    found = fb.Bytes.unpack(block.arrays["key"], block.arrays["key_lengths"])
    assert found == [None if value is None else value.encode() for value in values]
    assert block.arrays["key"].shape == (len(values), 12)
    for row, value in zip(block.arrays["key"], found, strict=True):
        assert not row[len(value or b"") :].any()


def test_values_of_fixed_size_and_nothing_but_nulls() -> None:
    for array, expected in ((pa.array([b"abc", None], pa.binary(3)), [b"abc", None]), (pa.nulls(2), [None, None])):
        block = fb.Transform(key=FEATURE).apply(pa.table({"c": array}))
        assert fb.Bytes.unpack(block.arrays["key"], block.arrays["key_lengths"]) == expected


def test_keys_follow_their_rows_through_a_loader(tmp_path: Path) -> None:
    keys = [f"user-{number}" for number in range(100)]
    pq.write_table(pa.table({"c": keys, "y": range(100)}), tmp_path / "a.parquet", row_group_size=30)
    transform = fb.Transform(key=FEATURE, y=fb.Label("y", dtype="int64"))
    with fb.Loader(fb.build_plan(fb.scan(tmp_path / "a.parquet")), transform, global_batch=7) as loader:
        for batch in loader:
            found = fb.Bytes.unpack(batch["key"], batch["key_lengths"])
            assert found == [f"user-{number}".encode() for number in batch["y"].tolist()]
            assert batch["key"].dtype is torch.uint8


def test_nothing_is_cut() -> None:
    table = pa.table({"c": pa.chunked_array([["a", "b"], ["c", "é" * 7]])})
    with pytest.raises(InvalidOption, match=r"14 bytes in column 'c', row 3 of its row group.*larger max_len"):
        fb.Transform(key=FEATURE).apply(table)
    with pytest.raises(WrongType, match="strings and binary"):
        fb.Transform(key=FEATURE).apply(pa.table({"c": [1]}))
    with pytest.raises(InvalidOption, match="max_len=0"):
        fb.Bytes("c", max_len=0)
    assert np.dtype("uint8") == fb.Transform(key=FEATURE).apply(table[:2]).arrays["key"].dtype
