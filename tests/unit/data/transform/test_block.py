from __future__ import annotations

import numpy as np
import pytest
import torch

from forebay.data.transform.block import Block
from forebay.errors import RowCountChanged, TransformFailed


def test_a_block_knows_its_rows_bytes_and_schema() -> None:
    block = Block.of({"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.int64)})
    assert block.rows == 3
    assert block.nbytes == 3 * 2 * 4 + 3 * 8
    assert block.schema == (("x", "float32", (2,)), ("y", "int64", ()))


def test_arrays_become_contiguous_and_native() -> None:
    columns_first = np.arange(6, dtype=">i4").reshape(2, 3).T
    array = Block.of({"x": columns_first}).arrays["x"]
    assert array.flags.c_contiguous
    assert array.dtype.isnative
    assert array.tolist() == columns_first.tolist()


def test_contiguous_arrays_are_not_copied() -> None:
    array = np.zeros((3, 2), np.float16)
    assert Block.of({"x": array}).arrays["x"] is array


def test_a_block_of_no_rows_is_a_block() -> None:
    block = Block.of({"x": np.zeros((0, 2), np.float32)}, 0)
    assert (block.rows, block.nbytes) == (0, 0)


@pytest.mark.parametrize("rows", [None, 3])
def test_another_length_names_array_and_both_counts(rows: int | None) -> None:
    with pytest.raises(RowCountChanged, match=r"'y' has 2 rows where the row group has 3") as caught:
        Block.of({"x": np.zeros(3), "y": np.zeros(2)}, rows)
    assert caught.value.facts == {"array": "y", "rows": 2, "expected": 3}


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([object(), None]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, np.complex64),
        np.zeros(2, np.longdouble),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(2, [("a", "i4")]),
        np.float32(1),
        np.zeros((2, 0)),
        [1, 2],
        None,
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.ones(2).to_sparse(),
    ],
)
def test_what_no_tensor_can_hold_is_refused_by_name(array: object) -> None:
    with pytest.raises(TransformFailed, match="'x'"):
        Block.of({"x": array})


def test_a_block_needs_arrays_with_names() -> None:
    with pytest.raises(TransformFailed, match="at least one array"):
        Block.of({})
    with pytest.raises(TransformFailed, match="named ''"):
        Block.of({"": np.zeros(2)})
