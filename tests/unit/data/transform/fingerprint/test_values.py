from __future__ import annotations

import datetime
import decimal
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.data.transform.fingerprint.values import NotPlain, canonical, value_identity

DIFFERENT: list[Any] = [
    *(None, True, 1, 1.0, "1", b"1", bytearray(b"1"), 1 + 0j, 0.0, -0.0, float("nan"), float("inf"), ..., ""),
    *([], (), {}, set(), frozenset(), [1], (1,), {1}, {1: 2}, [[1], 2], [1, [2]], [1, 2], [2, 1]),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": [1, 2]}, {"a": (1, 2)}),
    *(range(3), slice(1, 2), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), datetime.timedelta(1)),
    *(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    *(re.compile("a"), re.compile("a", re.IGNORECASE), re.compile(b"a")),
    *(np.int64(1), np.int32(1), np.float32(1), np.array([1]), np.array([[1]]), np.array([1], np.int32)),
    *(np.array([1.0, np.nan]), np.array(["a"]), np.array([], np.int64), np.zeros((0, 2)), np.zeros((2, 0))),
    *(np.dtype("int64"), np.dtype("int32"), np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "s")),
    *(pa.int64(), pa.list_(pa.int64()), pa.field("a", pa.int64()), pa.schema([("a", pa.int64())])),
    *(pa.array([1, 2]), pa.array([1, 2], pa.int32()), pa.array([1, None]), pa.array(["a"])),
    *("x" * 1000, "x" * 999 + "y", b"x" * 1000),
]


def test_different_values_differ_and_equal_values_do_not() -> None:
    texts = [canonical(value_identity(value)) for value in DIFFERENT]
    assert len(set(texts)) == len(DIFFERENT)
    assert [canonical(value_identity(value)) for value in DIFFERENT] == texts
    assert all(json.loads(text) is not False for text in texts)


def test_content_counts_not_strides() -> None:
    rows_first = np.arange(6).reshape(2, 3)
    assert value_identity(np.arange(12).reshape(2, 6)[:, ::2]) == value_identity(rows_first * 2)
    assert value_identity(np.asfortranarray(rows_first)) == value_identity(np.asfortranarray(rows_first).copy("F"))
    assert value_identity(np.asfortranarray(rows_first)) != value_identity(rows_first), 'ravel("K") differs'
    assert value_identity(np.arange(6)[::2]) == value_identity(np.array([0, 2, 4]))
    assert value_identity(pa.array([1, 2, 3]).slice(1)) == value_identity(pa.array([2, 3]))


def test_sets_have_no_order() -> None:
    assert value_identity({"a", "b", "c"}) == value_identity({"c", "b", "a"})


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [1, object()],
        {"a": {"b": object()}},
        {object(): 1},
        np.array([object()]),
        np.ma.masked_array([1], [True]),
        iter([]),
        open,
        type("Text", (str,), {})("a"),
        type("Pairs", (dict,), {})(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_not_plain(value: object) -> None:
    with pytest.raises(NotPlain):
        value_identity(value)
