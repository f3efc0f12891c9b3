"""Masks of rows: numbers of the kept rows, and their text."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.manifest.row_mask import RowMask

masks_strategy = st.lists(
    st.integers(0, 200).flatmap(lambda rows: st.lists(st.booleans(), min_size=rows, max_size=rows)), max_size=6
)


@given(masks=masks_strategy)
def test_numbers_of_kept_rows_are_those_of_numpy(masks: list[list[bool]]) -> None:
    mask = RowMask.of([np.array(each, dtype=np.bool_) for each in masks])
    again = RowMask.from_text(mask.to_text(), mask.rows)
    for found in (mask, again, pickle.loads(pickle.dumps(mask))):
        assert found.digest == mask.digest
        assert found.counts.tolist() == [sum(each) for each in masks]
        for index, each in enumerate(masks):
            assert found.keeps(index).tolist() == each
            rows = np.flatnonzero(each)
            number = np.arange(len(rows))
            assert found.select(np.full(len(rows), index), number).tolist() == rows.tolist()
    backwards = np.arange(len(masks))[::-1]
    assert [mask.take(backwards).keeps(index).tolist() for index in range(len(masks))] == masks[::-1]


def test_rows_of_several_row_groups_in_any_order() -> None:
    rng = np.random.default_rng(3)
    masks = [rng.random(rows) < 0.3 for rows in (1000, 64, 65, 7000)]
    mask = RowMask.of(masks)
    block = rng.permutation(np.repeat(np.arange(4), mask.counts))
    number = np.array([rng.integers(mask.counts[each]) for each in block])
    expected = [int(np.flatnonzero(masks[each])[place]) for each, place in zip(block, number, strict=True)]
    assert mask.select(block, number).tolist() == expected


@pytest.mark.parametrize("text", ["", "!", "aGVsbG8=", RowMask.of([np.ones(70, dtype=np.bool_)]).to_text()])
def test_a_text_of_another_mask_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="mask|base64|padding"):
        RowMask.from_text(text, np.array([60]))
    with pytest.raises(ValueError, match="mask|base64|padding"):
        RowMask.from_text(text, np.array([69]))
