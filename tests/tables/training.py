"""Training of the click model on one rank of a world, and by a dense model in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from tests.tables.clicks import ITEMS, USERS, ClickModel, Clicks, DenseClickModel, by_id, click_loss, clicks
from torch import Tensor, nn
from torch.optim import SGD

from forebay.data.plan.order import Order
from forebay.training.collectives.collective import Collective
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.options import Tables
from forebay.training.tables.owned_rows import DECAYED, WEIGHT, decayed
from forebay.training.tables.strategy import with_tables

SEED, DENSE_RATE = 5, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickRun:
    """Run of `steps` global batches from step `first` on. `max_norm` clips gradients."""

    tables: Tables
    first: int = 0
    steps: int = 30
    max_norm: float | None = None
    batch_of: Callable[[int], Clicks] = clicks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickResult:
    """Losses of the global batches, the parameters, the tables in the order of ids, and the state of this rank."""

    losses: list[float]
    dense: Mapping[str, Tensor]
    tables: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def train_clicks(collective: Collective, plan: Order | None, run: ClickRun, saved: Mapping[str, Any]) -> ClickResult:
    """Train on this rank. `saved` is a state of `whole_state`, or empty."""
    torch.manual_seed(SEED)
    model: nn.Module = ClickModel()
    options = StrategyOptions(reduction="mean", plan=plan, seed=SEED)  # type: ignore[arg-type] # only "exact" reads it
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, run.tables, collective, options)
    model, optimizer = strategy.prepare(model, partial(SGD, lr=DENSE_RATE))
    states = strategy.states(model, optimizer)
    for name, state in saved.items():
        states[name].load_state_dict(state)
    wrapped, losses = strategy.wrap(model), []
    for step in range(run.first, run.first + run.steps):
        batch = run.batch_of(step).part(collective.world.rank, collective.world.size)
        loss = click_loss(wrapped, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if run.max_norm is not None:
            strategy.clip_grad_norm(run.max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(collective.combine(loss.item(), list)) / collective.world.size)
    whole = whole_state({name: state.state_dict() for name, state in states.items()}, collective)
    tables = {
        name: by_id(_caught_up(whole["tables"], name), rows) for name, rows in (("user", USERS), ("items", ITEMS))
    }
    return ClickResult(losses=losses, dense=model.state_dict(), tables=tables, state=whole)


def _caught_up(tables: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    rows = dict(tables["rows"][name])
    if (caught_up := rows.pop(DECAYED, None)) is not None:
        rows[WEIGHT] = decayed(rows[WEIGHT], caught_up, tables["decay"][name])
    return rows


def whole_state(state: Any, collective: Collective) -> Any:
    """Return `state` with whole tensors in position of all ranks' parts."""
    if isinstance(state, FlatPart):
        parts = collective.combine((state.start, state.values), list)
        return torch.cat([values for _, values in sorted(parts, key=lambda part: part[0])]).reshape(state.shape)
    if isinstance(state, Mapping):
        return {key: whole_state(value, collective) for key, value in state.items()}
    return state


def train_dense(run: ClickRun) -> ClickResult:
    """Train the dense model on whole batches in this process."""
    torch.manual_seed(SEED)
    model, optimizer = DenseClickModel(SEED), run.tables.optimizer
    torch.manual_seed(SEED)
    model.out = nn.Linear(model.out.in_features, 1)
    dense = SGD(model.out.parameters(), lr=DENSE_RATE)
    tables = {"user": model.user, "items": model.items}
    moments = {
        name: {key: torch.zeros(table.shape if wide else table.shape[:1]) for key, wide in optimizer.moments.items()}
        for name, table in tables.items()
    }
    losses = []
    for step in range(run.first + run.steps):
        loss = click_loss(model, run.batch_of(step))
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if run.max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), run.max_norm)
        dense.step()
        for name, table in tables.items():
            _dense_update(table, moments[name], optimizer, step + 1)
        losses.append(loss.item())
    found = {name: {"weight": table.detach(), **moments[name]} for name, table in tables.items()}
    return ClickResult(losses=losses[run.first :], dense=model.state_dict(), tables=found, state={})


@torch.no_grad()
def _dense_update(table: nn.Parameter, moments: Mapping[str, Tensor], optimizer: RowOptimizer, step: int) -> None:
    """Decay all rows, and change those with a gradient: row by row, without an index."""
    table.mul_(1 - optimizer.lr * optimizer.weight_decay)
    assert table.grad is not None, "after backward()"
    for row in range(len(table)):
        if table.grad[row].any():
            state = {name: values[row : row + 1].clone() for name, values in moments.items()}
            change = optimizer.change(table.grad[row : row + 1], state, step=step, lr=optimizer.lr)
            table[row] -= change[0]
            for name, values in moments.items():
                values[row] = state[name][0]


def continued(run: ClickRun, steps: int) -> ClickRun:
    """Return the run that follows after `run`."""
    return replace(run, first=run.first + run.steps, steps=steps)
