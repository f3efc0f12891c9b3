from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import TooManyRanks
from forebay.training.tables.layout import NUM_SHARDS, TableLayout
from forebay.training.tables.start_values import start_rows


@given(rows=st.integers(1, 1000), size=st.integers(1, NUM_SHARDS))
def test_each_row_has_one_place_and_one_owner(rows: int, size: int) -> None:
    layout = TableLayout(rows)
    ids = layout.ids(0, rows)
    assert sorted(ids.tolist()) == list(range(rows))
    assert layout.positions(torch.from_numpy(ids)).tolist() == list(range(rows))
    bounds = layout.bounds(size)
    assert (bounds[0], bounds[-1]) == (0, rows) and list(bounds) == sorted(bounds)
    most = max(stop - start for start, stop in pairwise(bounds))
    assert most <= -(-NUM_SHARDS // size) * -(-rows // NUM_SHARDS)


def test_more_ranks_than_shards_are_refused() -> None:
    with pytest.raises(TooManyRanks, match="64 workers at most"):
        TableLayout(10).bounds(65)


def test_a_table_beyond_32_bits_has_places_of_64() -> None:
    layout = TableLayout(1 << 33)
    last = layout.positions(torch.tensor([(1 << 33) - 1]))
    assert last.dtype == torch.int64 and last.item() == (1 << 33) - 1


def test_start_values_depend_on_id_table_and_seed_alone() -> None:
    whole = start_rows(np.arange(100), 3, seed=1, table="user", scale=0.5)
    assert torch.equal(whole[7:9], start_rows(np.array([7, 8]), 3, seed=1, table="user", scale=0.5))
    assert whole.abs().max() <= 0.5 and whole.std() == pytest.approx(0.5 / 3**0.5, rel=0.1)
    assert abs(whole.mean()) < 0.05
    for other in (start_rows(np.arange(100), 3, seed=2, table="user", scale=0.5), whole.flip(0)):
        assert not torch.isclose(whole, other).any()


def test_start_values_are_pinned() -> None:
    """A resumed run must find the same ones for rows that it has never seen."""
    values = start_rows(np.array([0, 1, 1 << 40]), 2, seed=7, table="user", scale=1.0)
    assert values.tolist() == [
        [-0.8238382339477539, 0.18496084213256836],
        [0.29604578018188477, 0.26777493953704834],
        [0.0007982254028320312, 0.45494985580444336],
    ]
