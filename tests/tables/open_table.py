"""Training of a table with an open vocabulary on one rank of a world, and the same in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from tests.tables.training import whole_state
from torch import Tensor, nn
from torch.optim import SGD

from forebay.training.collectives.collective import Collective
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.optimizers import RowOptimizer, RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.start_values import start_rows
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.tables.vocabulary.shards import mixed, shards_of

OPEN_DIM, OPEN_SEED, OPEN_SCALE, OPEN_LR = 3, 11, 0.5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Run of `steps` global batches of `size` ids from step `first` on. Ids are new ones from time to time."""

    admission: Admission
    rows: int = 640
    first: int = 0
    steps: int = 40
    size: int = 24
    optimizer: RowOptimizer = field(default_factory=partial(RowSGD, lr=OPEN_LR))
    max_norm: float | None = None

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int64 [n] of either sign, and labels [n]. Every tenth batch has two rows."""
        rng = np.random.default_rng([step, 1])
        size = 2 if step % 10 == 9 else self.size
        ids = np.floor(60 * rng.random(size) ** 3).astype(np.int64) + 7 * (step // 5)
        return (ids - 40) * 0x123456789ABCDEF, rng.normal(size=size).astype(np.float32)

    def rows_before(self, step: int) -> int:
        """Return the rows of all batches before a step."""
        return sum(len(self.batch(at)[0]) for at in range(step))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenResult:
    """Losses, the values and the last lookup of each id with a row, the shared row, and the state of this rank."""

    losses: list[float]
    rows: Mapping[int, Tensor]
    seen: Mapping[int, int]
    shared: Tensor
    state: Mapping[str, Any]
    evicted: int = 0


class OpenModel(nn.Module):
    """Sum of a row, and a layer that does not count."""

    def __init__(self, run: OpenRun) -> None:
        super().__init__()
        self.id = Table(run.rows, OPEN_DIM, scale=OPEN_SCALE, admission=run.admission)
        self.out = nn.Linear(1, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.id(ids).sum(1) + 0 * self.out(torch.ones(len(ids), 1))[:, 0]
        return found


def train_open(collective: Collective, run: OpenRun, saved: Mapping[str, Any]) -> OpenResult:
    """Train on this rank. `saved` is a state of an `OpenResult`, or empty."""
    torch.manual_seed(OPEN_SEED)
    built = OpenModel(run)
    position = [run.rows_before(run.first)]
    options = StrategyOptions(
        reduction="mean",
        plan=None,  # type: ignore[arg-type] # only "exact" reads it
        seed=OPEN_SEED,
        rows_done=lambda: position[0],
    )
    inner = TorchDataParallel(collective, options)
    strategy = with_tables(inner, "ddp", built, Tables(run.optimizer), collective, options)
    model, optimizer = strategy.prepare(built, partial(SGD, lr=0.1))
    states = strategy.states(model, optimizer)
    for name, state in saved.items():
        states[name].load_state_dict(state)
    wrapped, losses = strategy.wrap(model), []
    rank, size = collective.world.rank, collective.world.size
    for step in range(run.first, run.first + run.steps):
        ids, labels = (torch.from_numpy(each) for each in run.batch(step))
        parts = np.array_split(np.arange(len(ids)), size)[rank]
        part = torch.from_numpy(parts if len(parts) else np.zeros(1, np.int64))
        loss = (wrapped(ids[part]) - labels[part]).square().mean() * (len(parts) * size / len(ids))
        loss.backward()
        if run.max_norm is not None:
            strategy.clip_grad_norm(run.max_norm)
        optimizer.step()
        optimizer.zero_grad()
        position[0] += len(ids)
        losses.append(sum(collective.combine(loss.item(), list)) / size)
    whole = whole_state({name: state.state_dict() for name, state in states.items()}, collective)
    found = whole["tables"]["rows"]["id"]
    ids, shared = found["ids"].tolist(), built.id.shared
    assert shared is not None, "prepared"
    return OpenResult(
        losses=losses,
        rows=dict(zip(ids, found["weight"], strict=True)),
        seen=dict(zip(ids, found["seen"].tolist(), strict=True)),
        shared=whole["tables"]["open"]["id"]["shared"]["weight"][0],
        state=whole,
        evicted=sum(collective.combine(shared.use.evicted, list)),
    )


class OpenOracle:
    """The same by dictionaries, id by id, with exact counts and `RowSGD`."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self.rows: dict[int, Tensor] = {}
        self.seen: dict[int, int] = {}
        self.evicted = 0
        self._counts = Counter[int]()
        self._window = self._check = 0
        self.shared = self._start(0, "id/shared")

    def train(self) -> list[float]:
        """Train all steps. Returns the losses."""
        return [self._step(*self._run.batch(step), self._run.rows_before(step)) for step in range(self._run.steps)]

    def _step(self, batch: np.ndarray, labels: np.ndarray, position: int) -> float:
        ids: list[int] = batch.tolist()
        errors = [float(self._value(each).sum()) - label for each, label in zip(ids, labels.tolist(), strict=True)]
        if self._run.admission.min_count == 1:
            self._admit(Counter(each for each in ids if each not in self.rows), position)
        for each, error in zip(ids, errors, strict=True):
            row = self.rows.get(each, self.shared)
            row -= OPEN_LR * 2 * error / len(ids)
            if each in self.rows:
                self.seen[each] = position
        if self._run.admission.min_count > 1:
            self._count([each for each in ids if each not in self.rows], position)
        self._evict(position)
        return float(np.square(errors).mean())

    def _value(self, each: int) -> Tensor:
        if self._run.admission.min_count == 1 and each not in self.rows and self._room(each) > 0:
            return self._start(each, "id")
        return self.rows.get(each, self.shared)

    def _count(self, ids: list[int], position: int) -> None:
        evict_after = self._run.admission.evict_after
        if evict_after is not None and position // evict_after != self._window:
            self._window = position // evict_after
            self._counts.clear()
        self._counts.update(ids)
        least = self._run.admission.min_count
        self._admit({each: self._counts[each] for each in set(ids) if self._counts[each] >= least}, position)

    def _admit(self, counts: Mapping[int, int], position: int) -> None:
        for each in sorted(counts, key=lambda each: (-counts[each], each)):
            if self._room(each) > 0:
                self.rows[each], self.seen[each] = self._start(each, "id"), position

    def _evict(self, position: int) -> None:
        evict_after = self._run.admission.evict_after
        if evict_after is None or position // (evict_after // 16) == self._check:
            return
        self._check = position // (evict_after // 16)
        for each in [each for each, seen in self.seen.items() if seen <= position - evict_after]:
            del self.rows[each], self.seen[each]
            self.evicted += 1

    def _room(self, each: int) -> int:
        shard = _shard(each)
        return self._run.rows // 64 - sum(_shard(other) == shard for other in self.rows)

    def _start(self, each: int, name: str) -> Tensor:
        return start_rows(np.array([each]), OPEN_DIM, seed=OPEN_SEED, table=name, scale=OPEN_SCALE)[0]


def _shard(each: int) -> int:
    return int(shards_of(mixed(torch.tensor([each]))))
