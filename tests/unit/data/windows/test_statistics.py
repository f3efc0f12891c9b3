"""Statistics: near the exact values, equal to the bit in any order of blocks, exact quantiles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forebay.data.windows.statistics import QuantileCounts, fold, scaling_of, statistics_id, summarize
from forebay.errors import InvalidOption


def blocks_of(seed: int, num_values: int = 20_000) -> list[NDArray[np.float32]]:
    """Values over many orders of magnitude, with NaNs, in blocks of different sizes. One block is empty."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.lognormal(3, 1.5, num_values // 2), rng.normal(1e4, 0.5, num_values // 2)])
    values = rng.permutation(values).astype(np.float32)
    values[rng.random(num_values) < 0.05] = np.nan
    return np.split(values[:, None], np.sort(np.append(rng.integers(0, num_values, 12), [50, 50])))


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_bit_in_any_order(seed: int) -> None:
    summaries = [summarize(block) for block in blocks_of(seed)]
    orders = [np.random.default_rng(order).permutation(len(summaries)) for order in range(20)]
    assert len({statistics_id(fold([summaries[i] for i in order], ["a"])) for order in orders}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_near_the_exact_values(seed: int) -> None:
    blocks = blocks_of(seed)
    exact = np.concatenate(blocks)[:, 0].astype(np.longdouble)
    present = exact[~np.isnan(exact)]
    found = fold([summarize(block) for block in blocks], ["a"])["a"]
    assert abs(found.mean / float(present.mean()) - 1) < 1e-12
    assert abs(found.std / float(present.std()) - 1) < 1e-12
    assert (found.count, found.nulls) == (len(present), len(exact) - len(present))
    assert (found.min, found.max) == (float(present.min()), float(present.max()))


def test_columns_without_numbers() -> None:
    values = np.array([[np.nan, 5, np.inf], [np.nan, 5, -1]], np.float32)
    empty, constant, infinite = fold([summarize(values)] * 2, ["a", "b", "c"]).values()
    assert (empty.count, empty.nulls) == (0, 4)
    assert all(math.isnan(value) for value in (empty.mean, empty.std, empty.min, empty.max))
    assert (constant.mean, constant.std) == (5, 0)
    assert (infinite.infinite, infinite.mean, infinite.max) == (2, -1, math.inf)
    assert fold([], ["a"])["a"].count == 0


def test_quantiles_equal_the_sorted_values() -> None:
    blocks = [
        np.concatenate([block[:, 0], [-7.5, -0.0, np.float32(np.inf)]]).astype(np.float32) for block in blocks_of(5)
    ]
    values = np.sort(np.concatenate(blocks))
    values = values[~np.isnan(values)]
    shares = (0.0, 0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
    found = QuantileCounts(lambda: blocks).at(shares)
    assert found == {share: float(values[round(share * (len(values) - 1))]) for share in shares}
    assert math.isnan(QuantileCounts(lambda: [np.array([np.nan], np.float32)]).at([0.5])[0.5])


def test_scaling_leaves_constant_columns_finite() -> None:
    values = np.array([[1, 5, np.nan], [3, 5, np.nan]], np.float32)
    statistics = fold([summarize(values)], ["a", "b", "c"])
    shift, factor = scaling_of(statistics, ["a", "b", "c"], "standard")
    assert (shift.tolist(), factor.tolist()) == ([2, 5, 0], [1, 1, 1])
    shift, factor = scaling_of(statistics, ["b", "a"], "minmax")
    assert (shift.tolist(), factor.tolist()) == ([5, 1], [1, 0.5])
    with pytest.raises(InvalidOption, match="was not counted"):
        scaling_of(statistics, ["a"], "robust")
    with pytest.raises(InvalidOption, match="choose"):
        scaling_of(statistics, ["a"], "mean")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.1, -1 / 3, 1e9 + 0.1])
@pytest.mark.parametrize("count", [3, 700, 801, 9999])
def test_a_constant_column_has_no_deviation(value: float, count: int) -> None:
    """Its sum rounds: scaled by a deviation of 1e-17, another value after the training part would be 1e16."""
    blocks = np.array_split(np.full((count, 1), value), 3)
    statistics = fold([summarize(block) for block in blocks], ["a"])
    assert (statistics["a"].mean, statistics["a"].std) == (value, 0)
    with_last_bit = [*blocks, np.array([[np.nextafter(value, np.inf)]])]
    almost = fold([summarize(block) for block in with_last_bit], ["a"])
    for found in (statistics, almost):
        shift, factor = scaling_of(found, ["a"], "standard")
        assert (shift.tolist(), factor.tolist()) == ([pytest.approx(value, rel=1e-15)], [1])


@pytest.mark.parametrize("scale", ["minmax", "robust"])
def test_infinities_are_no_scale(scale: Any) -> None:
    statistics = fold([summarize(np.array([[-np.inf], [2.0], [np.inf]]))], ["a"])
    statistics = {"a": replace(statistics["a"], quantiles={0.25: -math.inf, 0.5: 2.0, 0.75: math.inf})}
    with pytest.raises(InvalidOption, match="column 'a' has 2 infinite values"):
        scaling_of(statistics, ["a"], scale)
    assert scaling_of(statistics, ["a"], "standard")[0].tolist() == [2.0]


def test_the_id_sees_the_last_bit() -> None:
    one = fold([summarize(np.array([[1.0], [2.0]]))], ["a"])
    other = fold([summarize(np.array([[1.0], [np.nextafter(2.0, 3.0)]]))], ["a"])
    assert statistics_id(one) != statistics_id(other)
