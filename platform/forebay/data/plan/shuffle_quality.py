"""Quality of a plan's shuffle, compared with a full shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.data.plan.plan import Plan

FULL_TRAVEL = 1 / 3
"""Mean distance of two random positions, as a share of the whole."""

_MOST_BATCHES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """Figures of an epoch's global batches.

    Attributes:
        travel: Mean distance between the position of a row in the files and in the epoch, as a share of all
            rows. 1/3 in a full shuffle.
        row_groups: Mean number of row groups that a batch has rows of.
        full_row_groups: The same in a full shuffle.
        label_variance: Variance of the mean label over batches, as a multiple of the variance in a full shuffle. Above
            1 batches are made of similar rows. None without labels, or if all labels are equal.
        label_autocorrelation: Correlation of the mean labels of neighbouring batches. About 0 in a full shuffle; near
            1, similar batches follow each other. None without labels, or if all batches have the same mean.
    """

    travel: float
    row_groups: float
    full_row_groups: float
    label_variance: float | None = None
    label_autocorrelation: float | None = None


def shuffle_quality(
    plan: Plan, *, global_batch: int, epoch: int = 0, labels: NDArray[np.float64] | None = None
) -> ShuffleQuality:
    """Measure the shuffle of an epoch of `plan`.

    It is computed from all batches, or from 1,000 pairs of neighbours at equal distances.

    Args:
        plan: Plan of rows, not of windows.
        global_batch: Rows of a batch.
        epoch: Number of the epoch, from 0.
        labels: Label of each row of the files in their order, kept or not, float64 [rows]. NaN is left out.
    """
    starts = np.concatenate([[0], np.cumsum(plan.block_rows)])
    batches = plan.num_batches(global_batch)
    numbers = _measured(batches)
    sizes, travels, groups, means = [], [], [], []
    for number in numbers.tolist():
        position = number * (plan.num_rows // batches) + min(number, plan.num_rows % batches)
        block, row = plan.batch(epoch, position, global_batch)
        in_files = starts[block] + row
        sizes.append(len(row))
        travels.append(np.abs(in_files - np.arange(position, position + len(row))).mean() / plan.num_rows)
        groups.append(len(np.unique(block)))
        if labels is not None:
            means.append(np.nanmean(labels[in_files]))
    size = float(np.mean(sizes))
    shares = plan.kept_rows / plan.num_rows
    return ShuffleQuality(
        travel=float(np.average(travels, weights=sizes)),
        row_groups=float(np.mean(groups)),
        full_row_groups=float((1 - (1 - shares) ** size).sum()),
        label_variance=None if labels is None else _variance_ratio(labels, np.array(means), size),
        label_autocorrelation=None if labels is None else _autocorrelation(numbers, np.array(means), labels),
    )


def _measured(batches: int) -> NDArray[np.int64]:
    if batches <= _MOST_BATCHES:
        return np.arange(batches)
    first = np.linspace(0, batches - 2, _MOST_BATCHES // 2).astype(np.int64)
    return np.unique(np.concatenate([first, first + 1]))


def _autocorrelation(
    numbers: NDArray[np.int64], means: NDArray[np.float64], labels: NDArray[np.float64]
) -> float | None:
    apart = means - np.nanmean(labels)
    pairs = (apart[1:] * apart[:-1])[np.diff(numbers) == 1]
    variance = np.nanmean(apart**2)
    return float(np.nanmean(pairs) / variance) if len(pairs) and variance > 0 else None


def _variance_ratio(labels: NDArray[np.float64], means: NDArray[np.float64], size: float) -> float | None:
    rows = len(labels)
    # The variance of the mean of `size` rows that are drawn without replacement.
    expected = np.nanvar(labels) * (rows - size) / max(rows - 1, 1) / size
    return float(np.nanmean((means - np.nanmean(labels)) ** 2) / expected) if expected > 0 else None
