"""Strategy of models with tables.

Any other strategy trains the parameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption, validate_type
from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.state.setup import LocalParts
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.strategies.strategy import BuildOptimizer, Strategy, StrategyOptions
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.options import Tables
from forebay.training.tables.table import Table
from forebay.training.tables.table_metrics import TableMetrics

log = logging.getLogger(__name__)

TablesOption = Tables | RowOptimizer | None
"""Options of tables, or their optimizer alone. None for a model without tables."""

_PREFIX = "tables.rows."
_BUILT_RATE = "built_lr"
"""Key of a group: the rate with which its optimizer was built."""
_CLIP_EPS = 1e-6
"""Number that torch adds to a norm before it divides by it."""


def with_tables(
    inner: Strategy,
    name: str,
    model: nn.Module,
    tables: TablesOption,
    collective: Collective,
    options: StrategyOptions,
) -> Strategy:
    """Extend strategy `inner` by the tables of `model`.

    Returns `inner` itself for a model without tables. `name` is its name.

    Raises `InvalidOption` for tables without options, and for what tables cannot be combined with.
    """
    validate_type("tables", tables, TablesOption, "fb.tables.RowWiseAdagrad(lr=0.05) or another optimizer of rows")
    found = [each for each, module in model.named_modules() if isinstance(module, Table)]
    if not found and tables is None:
        return inner
    if not found or tables is None:
        raise InvalidOption(
            f"tables={tables!r} was given, and the model has {len(found)} tables: {', '.join(found)}. "
            "A model with fb.Table modules, and no other, needs worker.setup(..., "
            "tables=fb.tables.RowWiseAdagrad(lr=0.05)).",
            tables=found,
        )
    if options.reduction != "mean":
        raise InvalidOption(
            f"reduction={options.reduction!r} needs whole gradients, and a rank has gradients of its own table "
            "rows only. "
            "Set reduction='mean'.",
            reduction=options.reduction,
        )
    if name not in {"ddp", "fsdp2"}:
        raise InvalidOption(
            f"strategy={name!r} and fb.Table modules were both given. Tables are sharded by themselves: set "
            "strategy='ddp' or 'fsdp2' for the other parameters.",
            strategy=name,
        )
    chosen = Tables(tables) if isinstance(tables, RowOptimizer) else tables
    return TableStrategy(inner, collective, chosen, options)


class TableStrategy:
    """Strategy that trains tables after each optimizer step.

    It leaves the parameters to `inner`.
    """

    is_sharded = True

    def __init__(self, inner: Strategy, collective: Collective, tables: Tables, facts: StrategyOptions) -> None:
        self._inner, self._collective, self._options, self._facts = inner, collective, tables, facts
        self._tables: ModelTables | None = None

    def prepare(self, model: nn.Module, optimizer: BuildOptimizer) -> tuple[nn.Module, Optimizer]:
        facts = self._facts
        tables = self._tables = ModelTables(
            model, self._options, self._collective, seed=facts.seed, rows_done=facts.rows_done
        )
        self._metrics = TableMetrics(lambda: tables.shared, self._collective)
        model, built = self._inner.prepare(model, partial(_built, optimizer))
        # A number: a scheduler changes a rate that is a tensor in place. In the group, which a checkpoint keeps with
        # its rate: a run that goes on has the rate of its checkpoint, whatever the optimizer was built with.
        start = built.param_groups[0][_BUILT_RATE] = float(built.param_groups[0]["lr"])

        def train_tables(trained: Optimizer, _args: Any, _kwargs: Any) -> None:
            group = trained.param_groups[0]
            built_with = group.get(_BUILT_RATE, start)  # Checkpoints of earlier releases lack it.
            tables.step(float(group["lr"] / built_with) if built_with else 1.0)

        built.register_step_post_hook(train_tables)
        _forget_with(built, tables)
        return model, built

    def states(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {**self._inner.states(model, optimizer), "tables": self._live}

    def restored(self, name: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor | FlatPart:
        if name.startswith(_PREFIX):
            return self._live.restored(name.removeprefix(_PREFIX), shape, read)
        return self._inner.restored(name, shape, read)

    def local_parts(self) -> LocalParts:
        return replace(self._inner.local_parts(), tables=self._live.local_tables(), metrics=self._metrics.pop)

    def wrap(self, model: nn.Module) -> nn.Module:
        started = self._live.start()
        if self._collective.world.is_first:
            log.info("%s", "\n".join(self._live.lines()))
            for line in started:
                log.warning("%s", line)  # A table that starts new must be seen, whatever the level of the log.
        return self._inner.wrap(model)

    def backward(self, batch: Batch, loss_of: LossOf, passes: MicroBatches) -> Tensor:
        return self._inner.backward(batch, loss_of, passes)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        dense = self._inner.clip_grad_norm(math.inf)
        norm = torch.sqrt(dense.double().square() + self._live.squared_norm().to(dense.device))
        factor = (max_norm / (norm + _CLIP_EPS)).clamp(max=1.0)
        self._live.scale(factor.float())
        # The limit at which torch finds this factor for the gradients of parameters alone.
        self._inner.clip_grad_norm(float(factor * (dense.double() + _CLIP_EPS)))
        return norm.to(dense.dtype)

    def close(self) -> None:
        self._inner.close()

    @property
    def _live(self) -> ModelTables:
        assert self._tables is not None, "prepare() comes first"
        return self._tables


def _built(optimizer: BuildOptimizer, parameters: Iterable[Tensor]) -> Optimizer:
    """Build the optimizer of a model that may have tables only."""
    # torch refuses an empty list. The optimizer is still what steps, and has the rate that tables follow.
    return optimizer(list(parameters) or [nn.Parameter(torch.zeros(0))])


def _forget_with(optimizer: Optimizer, tables: ModelTables) -> None:
    """Make `optimizer.zero_grad()` drop table gradients too.

    torch has hooks for steps, and none for this.
    """
    zero_grad = optimizer.zero_grad

    def zero_all(set_to_none: bool = True) -> None:
        zero_grad(set_to_none)
        tables.zero_grad()

    optimizer.zero_grad = zero_all  # type: ignore[method-assign]
