"""Counts are near the exact shares at every row, and equal to counting one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.data.kernels.calls import merge
from forebay.data.plan.mixture.shares import WEIGHTS_SUM, ShareTree, integer_weights
from forebay.errors import InvalidOption

ROWS = 600


def random_weights(case: int) -> dict[int, int]:
    """2 to 64 datasets with weights from 1e-5 to 1, of four kinds."""
    rng = np.random.default_rng(case)
    count = int(rng.integers(2, 65))
    raw = (
        10 ** rng.uniform(-5, 0, count),
        rng.uniform(1e-5, 1, count),
        1.618 ** -np.arange(count) + 1e-5,
        np.full(count, 1.0),
    )[case % 4]
    weights = np.maximum(raw, raw.sum() / (1 << 19)).tolist()
    return dict(enumerate(integer_weights({str(index): weight for index, weight in enumerate(weights)}).values()))


def merged_sources(tree: ShareTree, start: int, stop: int) -> list[int]:
    """Datasets of rows `start` to `stop`, from the compiled merge of streams that hold their own number."""
    members = range(max(tree.members) + 1)
    streams = [(np.arange(stop - start), np.full(stop - start, index)) for index in members]
    addresses = np.array([[column.ctypes.data for column in stream] for stream in streams], dtype=np.uint64)
    state = np.array([[0], [0], [stop - start]]) * np.ones(len(members), dtype=np.int64)
    merged = np.empty((2, stop - start), dtype=np.int64)
    target = np.array([0, stop - start, tree.root, 0])
    assert merge(tree.nodes, tree.due(start), target, addresses, state, merged) == stop - start
    assert merged[0].tolist() == list(range(stop - start))
    return merged[1].tolist()


@pytest.mark.parametrize(
    "part", [*range(2), *(pytest.param(part, marks=pytest.mark.variation) for part in range(2, 10))]
)
def test_a_thousand_mixtures_are_within_two_rows_of_their_shares(part: int) -> None:
    for case in range(100 * part, 100 * part + 100):
        weights = random_weights(case)
        tree = ShareTree(weights)
        before = dict.fromkeys(weights, 0)
        sequence = []
        for rows in range(1, ROWS + 1):
            counts = tree.counts(rows)
            (grown,) = [index for index in weights if counts[index] != before[index]]
            assert counts[grown] == before[grown] + 1, "each row adds one row to one dataset"
            sequence.append(grown)
            before = counts
        assert sum(before.values()) == ROWS
        chosen = np.array(sequence)
        rows = np.arange(1, ROWS + 1)
        for index, weight in weights.items():
            own = np.cumsum(chosen == index)
            assert np.abs(own - rows * (weight / WEIGHTS_SUM)).max() < 2, (case, index)
        assert merged_sources(tree, 0, ROWS // 3) + merged_sources(tree, ROWS // 3, ROWS) == sequence


@settings(max_examples=200)
@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=20),
    rows=st.integers(0, 1 << 41),
    data=st.data(),
)
def test_numbers_of_rows_invert_the_counts_far_away(weights: list[int], rows: int, data: st.DataObject) -> None:
    tree = ShareTree(
        dict(enumerate(integer_weights({str(index): each for index, each in enumerate(weights)}).values()))
    )
    counts, after = tree.counts(rows), tree.counts(rows + 1)
    assert sum(counts.values()) == rows
    (index,) = [index for index in counts if after[index] != counts[index]]
    assert tree.row_number(index, counts[index]) == rows
    assert merged_sources(tree, rows, rows + 1) == [index]
    other = data.draw(st.sampled_from(sorted(counts)))
    assert tree.row_number(other, counts[other]) >= rows
    assert tree.counts(tree.row_number(other, counts[other]))[other] == counts[other]


def test_golden_sequence() -> None:
    tree = ShareTree(dict(enumerate(integer_weights({"web": 0.7, "code": 0.25, "books": 0.05}).values())))
    numbers = sorted((tree.row_number(index, own), index) for index in range(3) for own in range(20))[:20]
    assert "".join(str(index) for _, index in numbers) == "01001000200100100010"
    assert tree.counts(10**12) == {0: 699_999_809_265, 1: 250_000_000_000, 2: 50_000_190_735}


@given(st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=64))
def test_integer_weights_are_the_shares(weights: list[float]) -> None:
    whole = integer_weights({str(index): weight for index, weight in enumerate(weights)})
    assert sum(whole.values()) == WEIGHTS_SUM
    for index, weight in enumerate(weights):
        assert abs(whole[str(index)] - weight / sum(weights) * WEIGHTS_SUM) < 1.001


@pytest.mark.parametrize("weight", [0, 0.0, -1, float("nan"), float("inf"), True, "1", None])
def test_impossible_weights_are_named(weight: object) -> None:
    with pytest.raises(InvalidOption, match=r"'code' the weight .*number above 0"):
        integer_weights({"web": 1, "code": weight})  # type: ignore[dict-item]


def test_shares_that_no_row_would_get_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"'code' a share of 1e-07.*2\*\*-20"):
        integer_weights({"web": 1, "code": 1e-7})
