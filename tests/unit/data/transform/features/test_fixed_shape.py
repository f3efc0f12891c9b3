"""Lists of one length: every kind of Arrow's lists gives the array of NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import forebay as fb
from forebay.errors import InvalidOption, WrongType

LISTS: dict[str, Callable[[pa.DataType, int], pa.DataType]] = {
    "list": lambda kind, _: pa.list_(kind),
    "large_list": lambda kind, _: pa.large_list(kind),
    "fixed_size_list": pa.list_,
    "list_view": lambda kind, _: pa.list_view(kind),
}


def packed(array: pa.Array, **options: Any) -> Any:
    return fb.Transform(x=fb.Array("c", **options)).apply(pa.table({"c": array})).arrays["x"]


@pytest.mark.parametrize("outer", LISTS)
@pytest.mark.parametrize("inner", LISTS)
@pytest.mark.parametrize("cuts", [(), (1, 3)], ids=str)
def test_a_matrix_in_each_row(outer: str, inner: str, cuts: tuple[int, ...]) -> None:
    expected = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    kind = LISTS[outer](LISTS[inner](pa.float64(), 3), 2)
    whole = pa.array([None, *expected.tolist()], kind)[1:]
    edges = [0, *cuts, 5]
    chunks = [whole[start:stop] for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(packed(pa.chunked_array(chunks), shape=(2, 3)), expected)


@pytest.mark.parametrize("outer", LISTS)
def test_nulls_at_every_level_are_filled(outer: str) -> None:
    rows = [[[1, None], None], None, [[3, 4], [5, 6]]]
    array = pa.array(rows, LISTS[outer](pa.list_(pa.int8()), 2))
    expected = [[[1, 7], [7, 7]], [[7, 7], [7, 7]], [[3, 4], [5, 6]]]
    assert packed(array, shape=(2, 2), fill=7, dtype="int16").tolist() == expected


@pytest.mark.parametrize("outer", LISTS)
@pytest.mark.parametrize("inner", LISTS)
def test_lists_without_a_type_of_items_are_filled(outer: str, inner: str) -> None:
    array = pa.array([[[None] * 3] * 2, None], LISTS[outer](LISTS[inner](pa.null(), 3), 2))
    assert packed(array, shape=(2, 3), fill=7).tolist() == [[[7] * 3] * 2] * 2


def test_one_size_no_rows_and_a_column_of_nulls() -> None:
    assert packed(pa.array([[1.0, 2.0]]), shape=2).tolist() == [[1, 2]]
    assert packed(pa.array([], pa.list_(pa.float32())), shape=2).shape == (0, 2)
    assert packed(pa.nulls(2), shape=(1, 2), fill=3).tolist() == [[[3, 3]], [[3, 3]]]
    assert fb.Array("c", 2) == fb.Array("c", (2,))


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        ([[1, 2], [1, 2, 3]], {"shape": 2}, "a list of 3 items at level 1, in row 1 of its row group"),
        ([[[1]], [[1]], [[1, 2]]], {"shape": (1, 1)}, "a list of 2 items at level 2, in row 2"),
        ([[1, 2]], {"shape": (2, 2)}, r"lists of shape \(2, 2\)"),
        ([[[1]]], {"shape": 1}, r"lists of numbers of shape \(1,\)"),
        ([["a"]], {"shape": 1}, "lists of numbers"),
        ([[0.5]], {"shape": 1, "dtype": "int8"}, "cut off fractions"),
    ],
)
def test_other_lists_are_refused(rows: list[Any], options: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongType, match=text):
        packed(pa.chunked_array([pa.array(rows[:1]), pa.array(rows[1:], pa.array(rows).type)]), **options)


def test_a_fixed_size_is_checked_before_reading() -> None:
    with pytest.raises(WrongType, match=r"shape \(3,\)"):
        fb.Array("c", 3).check("x", {"c": pa.list_(pa.int8(), 2)})
    for shape in ((), 0, (2, -1), (1.5,)):
        with pytest.raises(InvalidOption, match="shape of one row"):
            fb.Array("c", shape)  # type: ignore[arg-type]
