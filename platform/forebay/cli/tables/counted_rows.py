"""Table that counts its lookups and stores no rows.

So its use is known before it takes memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.training.collectives.tensor_collectives import SingleProcessTensorCollectives
from forebay.training.tables.exchange.pending_lookup import PendingLookup, RoutedIds
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.owned_rows import OwnedRows, TableFacts
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.vocabulary.admission import Admission


class CountedRows(SharedRows):
    """Table in one process, whose rows are all zero.

    It counts the ids of whole global batches.

    `unique` has, for each of `world_sizes`, the unique ids that one rank of it would look up, summed over steps and
    averaged over ranks. `hottest` sums the lookups of the most frequent id of each step. With `admission`, lookups that
    train are counted by id.
    """

    def __init__(
        self, facts: TableFacts, optimizer: RowOptimizer, world_sizes: Sequence[int], admission: Admission | None = None
    ) -> None:
        device = torch.device("cpu")
        super().__init__(
            SingleProcessTensorCollectives(),
            "rows",
            lambda span: OwnedRows(facts, span, optimizer, device),
            home=0,
            wire="float32",
        )
        self.unique = dict.fromkeys(world_sizes, 0.0)
        self.hottest = 0
        self.admission = admission
        self._counts: tuple[NDArray[np.int64], NDArray[np.int64]] = np.zeros(0, np.int64), np.zeros(0, np.int64)

    @property
    def distinct(self) -> int:
        """Distinct ids of all steps of an open vocabulary."""
        return len(self._counts[0])

    @property
    def admitted(self) -> int:
        """Number of ids with a row, if none was evicted."""
        if self.admission is None:
            return self.facts.rows
        return min(int((self._counts[1] >= self.admission.min_count).sum()), self.facts.rows)

    @property
    def shared(self) -> int:
        """Number of lookups whose ids end without a row."""
        if self.admission is None:
            return 0
        return int(self._counts[1][self._counts[1] < self.admission.min_count].sum())

    def route(self, ids: Tensor) -> RoutedIds:
        numbers = ids.cpu().numpy()
        self.use.lookups += len(numbers)
        for size in self.unique:
            parts = np.array_split(numbers, size)
            self.unique[size] += sum(len(np.unique(part)) for part in parts) / size
        if len(numbers):
            self.hottest += int(np.unique(numbers, return_counts=True)[1].max())
        return RoutedIds(ids, (), torch.arange(len(ids), device=ids.device))

    def answer(self, asked: Tensor, *, is_trained: bool) -> Tensor:
        if self.admission is not None and is_trained:
            self._count(asked.cpu().numpy())
        return torch.zeros(len(asked), self.facts.dim, device=asked.device)

    def add_pending(self, lookup: PendingLookup) -> None:
        """Do nothing: no update uses a gradient."""

    def _count(self, numbers: NDArray[np.int64]) -> None:
        ids, counts = self._counts
        every, inverse = np.unique(np.concatenate([ids, numbers]), return_inverse=True)
        totals = np.bincount(inverse[len(ids) :], minlength=len(every))
        totals[inverse[: len(ids)]] += counts
        self._counts = every, totals

    def reduce(self) -> tuple[Tensor, Tensor]:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, self.facts.dim)

    def scale(self, factor: Tensor) -> None:
        """Do nothing: rows that are counted have no gradient."""

    def update(self, step: int, lr: float) -> None:  # noqa: ARG002 - there are no rows
        self.use.steps += 1
