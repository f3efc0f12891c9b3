"""AUC over all ranks, from histograms of scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from forebay.errors import BadJob
from forebay.training.worker.worker import Worker

NUM_BINS = 1 << 16
SPREAD = 4.0
"""Logits are mapped to bins by sigmoid(logit / SPREAD).

A plain sigmoid puts every logit above 11 into the last bin. This one still separates logits of 20, and near 0 its bins
are 0.00025 wide.
"""


class ScoreBins:
    """Counts of negatives and positives per bin of the score.

    They can be added over batches and ranks.
    """

    def __init__(self) -> None:
        self.counts = np.zeros((2, NUM_BINS), dtype=np.int64)
        self.num_nan = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count rows.

        `logits` are floats, `labels` 0 or 1 (anything above 0.5 is positive). Both have n elements.
        """
        scores = logits.detach().reshape(-1).double()
        squashed = torch.sigmoid(scores / SPREAD)
        bins = (squashed * NUM_BINS).nan_to_num().long().clamp_(max=NUM_BINS - 1)
        positive = labels.reshape(-1) > 0.5
        self.num_nan += int(scores.isnan().sum())
        both = torch.bincount(bins + positive * NUM_BINS, minlength=2 * NUM_BINS)
        self.counts += both.cpu().numpy().reshape(2, NUM_BINS)


def area(counts: np.ndarray) -> float:
    """AUC of int64 counts [2, bins] (negatives, positives).

    Ties within a bin count half. NaN if a class is missing.
    """
    negatives, positives = counts.astype(np.float64)
    pairs = negatives.sum() * positives.sum()
    if pairs == 0:
        return float("nan")
    negatives_below = np.cumsum(negatives) - negatives
    return float((positives * (negatives_below + negatives / 2)).sum() / pairs)


def evaluate_auc(worker: Worker, model: nn.Module) -> dict[str, float]:
    """`{"auc": ...}` of the model's logits for `batch["label"]` (0 or 1) on the job's held-out data, for
    `fit(evaluate=)`.

    The result is the same on every rank and, up to the width of a bin, for every world size. It is NaN if any logit is
    NaN. Over a mixture, `auc/NAME` is the area of each dataset, and `auc` the area of all rows. Raises `BadJob` for a
    job without held-out data.
    """
    batches = worker.held_out()
    if batches is None:
        raise BadJob("evaluate_auc needs held-out data, and this job has none. Set held_out= in the Job.")
    names: tuple[str, ...] = ()
    bins: dict[int, ScoreBins] = {}
    for batch in batches:
        logits = model(batch)  # Also for a dummy row: all ranks must call a model equally often.
        names = batch.names
        for number in range(max(len(names), 1)):
            rows = slice(None) if batch.source is None else batch.source == number
            if batch.weight > 0:
                bins.setdefault(number, ScoreBins()).add(logits[rows], batch["label"][rows])
    own = [bins.get(number, ScoreBins()) for number in range(max(len(names), 1))]
    total = worker.all_reduce(np.stack([np.append(each.counts.ravel(), each.num_nan) for each in own]))
    by_name = {f"auc/{name}": _area_of(counts) for name, counts in zip(names, total, strict=False)}
    return {"auc": _area_of(total.sum(axis=0)), **by_name}


def _area_of(counts: np.ndarray) -> float:
    """AUC from the counts of a `ScoreBins`.

    `counts` ends with the number of NaN: int64 [2 * bins + 1].
    """
    return float("nan") if counts[-1] else area(counts[:-1].reshape(2, NUM_BINS))
