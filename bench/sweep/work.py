"""Work that is the same for every system of the sweep bench: transform, model, one step, and the totals of a trial.

Needs only NumPy and torch, of any version that a system brings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.notes import note

NUM_COLUMNS = 100
COLUMNS = [f"x{place:03d}" for place in range(NUM_COLUMNS)]
NUM_FEATURES = NUM_COLUMNS - 1
LEARNING_RATES = (1e-4, 1e-2)
NUM_QUANTILES = 1000
_EDGE = 1e-7


def arrays(rows: np.ndarray, label: np.ndarray, log: str, num_quantiles: int = NUM_QUANTILES) -> dict[str, np.ndarray]:
    """Arrays of a batch, from its columns float32 [rows, 100] and labels float32 [rows].

    - `x` float32 [rows, 99]: each column mapped by its quantiles to a normal variable
    - `number` float32 [rows]: the row's own number, which is the first column of the data
    - `label` float32 [rows]

    The arithmetic follows scikit-learn's `QuantileTransformer(output_distribution="normal")`: two interpolations,
    one from each side, and one back.
    """
    note(log, {"spans": spans(rows[:, 0].astype(np.int64))})
    ranks = np.linspace(0.0, 1.0, num_quantiles)
    normal = NormalDist()
    bounds = np.array([normal.inv_cdf(rank) for rank in ranks.clip(_EDGE, 1.0 - _EDGE)])
    x = np.empty((len(rows), NUM_FEATURES), dtype=np.float32)
    for place in range(NUM_FEATURES):
        column = rows[:, place + 1].astype(np.float64)
        rank = 0.5 * (np.interp(column, bounds, ranks) - np.interp(-column, -bounds[::-1], -ranks[::-1]))
        x[:, place] = np.interp(rank, ranks, bounds)
    return {"number": np.ascontiguousarray(rows[:, 0]), "x": x, "label": np.array(label, dtype=np.float32)}


def spans(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Spans of rows that follow each other, as (first, one after the last)."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(numbers, cuts) if len(part)]


def model() -> nn.Module:
    """Model with two small layers over 99 features, fast enough to wait for its data."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))


@dataclass
class WorkTotals:
    """Totals of one trial. Rows are identified by their own numbers, never by a loader's count."""

    trial: str
    rows: int = 0
    lost: int = 0
    repeated: int = 0
    loss: float = 0.0
    epochs: int = 0
    neighbours: float = 0.0
    began: float = field(default_factory=time.time)
    ended: float = 0.0

    def take(self, numbers: list[np.ndarray], num_rows: int) -> None:
        """Add one epoch: the numbers of its rows in the order of arrival."""
        came = np.concatenate(numbers).astype(np.int64) if numbers else np.zeros(0, np.int64)
        counts = np.bincount(came, minlength=num_rows)
        self.epochs += 1
        self.rows += len(came)
        self.lost += int((counts == 0).sum())
        self.repeated += int((counts - 1).clip(min=0).sum())
        self.neighbours = float((np.abs(np.diff(came)) == 1).mean()) if len(came) > 1 else 0.0

    def write(self, log: str, loss: float) -> None:
        """Write the totals and the loss of the ended trial."""
        self.loss, self.ended = loss, time.time()
        note(log, asdict(self))


class BenchTrainer:
    """Model of one trial, trained on batches: name -> tensor."""

    def __init__(self, lr: float, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._model = model()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=lr)
        self._criterion = nn.BCEWithLogitsLoss()

    def step(self, batch: Mapping[str, Any]) -> float:
        loss = self._criterion(self._model(batch["x"]), batch["label"])
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())
