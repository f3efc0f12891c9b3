"""Figures of a shuffle, where the order is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.plan import build_plan
from forebay.data.plan.shuffle_quality import FULL_TRAVEL, shuffle_quality


def test_order_of_the_files_has_the_worst_figures(memory_manifest: Callable[..., Manifest]) -> None:
    plan = build_plan(memory_manifest([500] * 20), lanes=1, shuffle=False)
    # The label changes once, in the middle of the files.
    labels = (np.arange(10_000) >= 5000).astype(np.float64)
    found = shuffle_quality(plan, global_batch=100, labels=labels)
    assert found.travel == 0
    assert found.row_groups == 1
    assert found.full_row_groups == pytest.approx(20, rel=0.01)
    # Every batch has one label: its mean varies as the label itself.
    assert found.label_variance == pytest.approx(100, rel=0.02)
    # All neighbours are alike but those in the middle.
    assert found.label_autocorrelation == pytest.approx(1 - 2 / 99, abs=0.001)


def test_window_over_all_rows_is_near_a_full_shuffle(memory_manifest: Callable[..., Manifest]) -> None:
    plan = build_plan(memory_manifest([50] * 200), lanes=16, shuffle_rows=100_000, seed=5)
    labels = (np.arange(10_000) >= 5000).astype(np.float64)
    found = shuffle_quality(plan, global_batch=100, labels=labels, epoch=3)
    assert found.travel == pytest.approx(FULL_TRAVEL, rel=0.1)
    assert found.label_variance is not None
    assert found.label_variance < 3
    assert found.label_autocorrelation is not None
    assert abs(found.label_autocorrelation) < 0.4


def test_small_windows_are_worse_than_large_ones(memory_manifest: Callable[..., Manifest]) -> None:
    manifest = memory_manifest([100] * 100)
    labels = np.repeat(np.random.default_rng(0).normal(size=100), 100)
    small, large = (
        shuffle_quality(build_plan(manifest, lanes=4, shuffle_rows=rows), global_batch=64, labels=labels)
        for rows in (100, 5000)
    )
    assert small.row_groups < large.row_groups
    assert small.label_variance > 2 * large.label_variance


def test_equal_labels_have_no_ratio(memory_manifest: Callable[..., Manifest]) -> None:
    plan = build_plan(memory_manifest([50] * 4))
    assert shuffle_quality(plan, global_batch=10, labels=np.ones(200)).label_variance is None


def test_long_epochs_are_measured_by_pairs_of_neighbours(memory_manifest: Callable[..., Manifest]) -> None:
    labels = (np.arange(10_000) >= 5000).astype(np.float64)
    plan = build_plan(memory_manifest([500] * 20), lanes=1, shuffle=False)
    found = shuffle_quality(plan, global_batch=3, labels=labels)
    assert found.label_autocorrelation == pytest.approx(1, abs=0.01)
