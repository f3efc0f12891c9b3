from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from forebay.training.worker.evaluation import NUM_BINS, ScoreBins, area


def counted(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    bins = ScoreBins()
    half = len(logits) // 2
    for part in (slice(None, half), slice(half, None)):
        bins.add(torch.from_numpy(logits[part]), torch.from_numpy(labels[part]))
    return bins.counts


def binned_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    return area(counted(logits, labels))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 3000),
    signal=st.floats(-3, 3),
    spread=st.sampled_from([1e-2, 1.0, 3.0, 20.0]),
    rate=st.sampled_from([0.02, 0.5, 0.9]),
)
def test_differs_from_scikit_learn_by_ties_within_bins_at_most(
    seed: int, rows: int, signal: float, spread: float, rate: float
) -> None:
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < rate).astype(np.float32)
    labels[:2] = 0, 1
    logits = (rng.standard_normal(rows) * spread + signal * labels).astype(np.float32)
    negatives, positives = counted(logits, labels).astype(float)
    ties = (negatives * positives).sum() / negatives.sum() / positives.sum()
    assert binned_auc(logits, labels) == pytest.approx(roc_auc_score(labels, logits), abs=ties / 2 + 1e-12)


@pytest.mark.parametrize("spread", [0.3, 1.0, 5.0])
def test_agrees_with_scikit_learn_on_many_rows(spread: float) -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random(100_000) < 0.2).astype(np.float32)
    logits = (rng.standard_normal(100_000) * spread + spread * labels - 2).astype(np.float32)
    assert binned_auc(logits, labels) == pytest.approx(roc_auc_score(labels, logits), abs=1e-5)


def test_tells_logits_apart_where_a_sigmoid_in_float32_is_one() -> None:
    logits = np.array([18.0, 19.0, 20.0, 21.0], dtype=np.float32)
    assert torch.sigmoid(torch.from_numpy(logits)).unique().numel() == 1
    assert binned_auc(logits, np.array([0, 0, 1, 1])) == 1.0
    assert binned_auc(-logits, np.array([0, 0, 1, 1])) == 0.0


def test_ties_and_infinities() -> None:
    assert binned_auc(np.zeros(10), np.array([0, 1] * 5)) == 0.5
    assert binned_auc(np.array([-np.inf, np.inf, -np.inf, np.inf]), np.array([0, 1, 0, 1])) == 1.0


def test_a_missing_class_is_nan() -> None:
    assert np.isnan(area(np.zeros((2, NUM_BINS), dtype=np.int64)))
    assert np.isnan(binned_auc(np.arange(4.0), np.ones(4)))


def test_nan_is_counted_not_binned_silently() -> None:
    bins = ScoreBins()
    bins.add(torch.tensor([0.0, float("nan"), 1.0]), torch.tensor([0, 1, 1]))
    assert bins.num_nan == 1


def test_counts_take_columns_and_any_dtype() -> None:
    bins = ScoreBins()
    bins.add(torch.tensor([[0.5], [-0.5]], dtype=torch.bfloat16), torch.tensor([True, False]))
    assert bins.counts.sum(axis=1).tolist() == [1, 1]
    assert area(bins.counts) == 1.0
