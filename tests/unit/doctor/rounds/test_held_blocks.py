"""Held blocks at the row counts of others: the same arrays, and lists that still fit their values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import forebay as fb
from forebay.doctor.rounds.held_blocks import with_rows

LISTS = [[1, 2], [], [3], None, [4, 5, 6]]


@pytest.mark.parametrize("lists", [LISTS, [[]] * 5], ids=["lists", "empty"])
@pytest.mark.parametrize("rows", [1, 4, 5, 6, 17])
def test_rows_come_in_turn_with_their_lists(rows: int, lists: list[list[int] | None]) -> None:
    table = pa.table({"id": range(5), "items": pa.array(lists, pa.list_(pa.int64()))})
    transform = fb.Transform(items=fb.Ragged("items", padded=False), id=fb.Label("id", dtype="int64"))
    block = transform.apply(table)
    resized = with_rows(block, rows)
    ids = [row % 5 for row in range(rows)]
    assert resized.has_rows(rows) and resized.schema == block.schema
    assert resized.arrays["id"].tolist() == ids
    values, offsets = (resized.arrays[f"@lists.{kind}.items"] for kind in ("values", "offsets"))
    assert offsets[0] == 0 and offsets[-1] == len(values)
    assert [each.tolist() for each in np.split(values, offsets[1:-1])] == [lists[row] or [] for row in ids]
