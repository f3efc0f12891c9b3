"""Work that is the same for every system of the preparation bench: model, step, and the log of an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.notes import note


def click_model(num_numbers: int, num_ids: int) -> nn.Module:
    """Model with two small layers, fast enough to wait for its data."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return ClickNetwork(num_numbers, num_ids)


class ClickNetwork(nn.Module):
    """Network over numbers float32 [rows, numbers] and ids int64 [rows] of one category."""

    def __init__(self, num_numbers: int, num_ids: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_ids, 8)
        self.layers = nn.Sequential(nn.Linear(num_numbers + 8, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([numbers, self.embedding(ids)], dim=1))
        return found


class EpochLog:
    """Log of the epochs of one run. Rows are identified by their own numbers, never by a loader's count."""

    def __init__(self, path: str, num_rows: int) -> None:
        self._path, self._num_rows = path, num_rows
        self._start()

    def _start(self) -> None:
        self._numbers: list[np.ndarray] = []
        self._wait_s, self._began = 0.0, time.perf_counter()

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches. Measures the time that each one was waited for."""
        arriving = iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(arriving, None)
            self._wait_s += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def add(self, numbers: np.ndarray) -> None:
        """Add the row numbers of one batch."""
        self._numbers.append(numbers)

    def end_epoch(self) -> None:
        """Write the line of an epoch, and start the next one."""
        seconds = time.perf_counter() - self._began
        came = np.concatenate(self._numbers).astype(np.int64)
        counts = np.bincount(came, minlength=self._num_rows)
        facts = {
            "seconds": seconds,
            "wait_s": self._wait_s,
            "rows": len(came),
            "lost": int((counts == 0).sum()),
            "repeated": int((counts - 1).clip(min=0).sum()),
        }
        note(self._path, {"epoch": facts})
        self._start()
