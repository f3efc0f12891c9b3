"""Made-up lookups of a small model with two tables, and the same model with dense tables in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from forebay.training.tables.layout import TableLayout
from forebay.training.tables.start_values import start_rows
from forebay.training.tables.table import Table

USERS, ITEMS, DIM, PADDING = 333, 50, 4, 7
SCALE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Clicks:
    """Rows of a global batch: `user` [n], `items` [n, k] with `lengths` [n], and `label` [n]. `weight`: see `Batch`."""

    user: Tensor
    items: Tensor
    lengths: Tensor
    label: Tensor
    weight: float = 1.0

    def part(self, rank: int, world_size: int) -> Clicks:
        """Return the rows of a rank. A rank without rows gets a dummy row of weight 0, as from the loader."""
        every = np.array_split(np.arange(len(self.user)), world_size)[rank]
        rows = torch.from_numpy(every if len(every) else np.zeros(1, np.int64))
        weight = len(every) * world_size / len(self.user)
        parts = {name: getattr(self, name)[rows] for name in ("user", "items", "lengths", "label")}
        return replace(self, **parts, weight=weight)


def clicks(step: int, *, size: int = 24, width: int = 5, skew: float = 2.0) -> Clicks:
    """Return the global batch of a step: skewed ids, repeated ones, padding ids and empty bags."""
    rng = np.random.default_rng([step])
    user = (USERS * rng.random(size) ** skew).astype(np.int64)
    items = (ITEMS * rng.random((size, width)) ** skew).astype(np.int64)
    lengths = rng.integers(0, width + 1, size)
    return Clicks(
        user=torch.from_numpy(user),
        items=torch.from_numpy(items),
        lengths=torch.from_numpy(lengths),
        label=torch.from_numpy(rng.normal(size=size).astype(np.float32)),
    )


class ClickModel(nn.Module):
    """Regression on a user's row, and the mean and the sum of the items' rows. Each table is looked up twice.

    Ids beyond a table look up its row 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.user = Table(USERS, DIM, scale=SCALE, bad_ids="row 0")
        self.items = Table(ITEMS, DIM, padding_id=PADDING, scale=SCALE, bad_ids="row 0")
        self.out = nn.Linear(4 * DIM, 1)

    def forward(self, batch: Clicks) -> Tensor:
        items = self.items(batch.items, batch.lengths, pool="mean")
        total = self.items(batch.items, batch.lengths, pool="sum")
        again = self.user(batch.user.flip(0)).flip(0)
        found: Tensor = self.out(torch.cat([self.user(batch.user), items, 0.3 * total, again**2], dim=1))
        return found[:, 0]


class DenseClickModel(nn.Module):
    """`ClickModel` with whole tables as parameters, in the order of ids, and plain operations."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.user, self.items = (nn.Parameter(start_table(name, seed)) for name in ("user", "items"))
        self.out = nn.Linear(4 * DIM, 1)

    def forward(self, batch: Clicks) -> Tensor:
        positions = torch.arange(batch.items.shape[1])
        used = ((positions < batch.lengths[:, None]) & (batch.items != PADDING)).float()
        total = (self.items[_valid(batch.items, ITEMS)] * used[:, :, None]).sum(1)
        items = total / used.sum(1).clamp(min=1)[:, None]
        user = self.user[_valid(batch.user, USERS)]
        found: Tensor = self.out(torch.cat([user, items, 0.3 * total, user**2], dim=1))
        return found[:, 0]


def _valid(ids: Tensor, rows: int) -> Tensor:
    return torch.where((ids < 0) | (ids >= rows), 0, ids)


def start_table(name: str, seed: int) -> Tensor:
    """Return the start values of a table of `ClickModel`, in the order of ids."""
    rows = {"user": USERS, "items": ITEMS}[name]
    return start_rows(np.arange(rows), DIM, seed=seed, table=name, scale=SCALE)


def click_loss(model: nn.Module, batch: Clicks) -> Tensor:
    """Return the mean squared error, times the weight of the part."""
    loss: Tensor = (model(batch) - batch.label).square().mean() * batch.weight
    return loss


def by_id(saved: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Return whole tensors of a table, which are in the order of `TableLayout`, in the order of ids."""
    ids = torch.from_numpy(TableLayout(rows).ids(0, rows))
    return {name: torch.empty_like(values).index_copy_(0, ids, values) for name, values in saved.items()}
