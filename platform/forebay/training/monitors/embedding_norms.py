"""Monitor of embedding rows that grow without bound.

Their norms show it long before the loss does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import nn

from forebay.errors import InvalidOption
from forebay.training.monitors.monitor import Action, ActionWord, Verdict, action_of
from forebay.training.monitors.table_norms import TableNorms
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup

EVERY = 8
"""Steps per measurement. Most of its cost is the launch of a dozen small operations."""


@dataclass(frozen=True, slots=True)
class EmbeddingNorms:
    """Monitor for embedding rows whose length (Euclidean norm) exceeds `limit`.

    It observes every `nn.Embedding`, `nn.EmbeddingBag` and `fb.Table` of the model, and two-dimensional parameters
    whose names match one of `tables`. Of an `fb.Table`, a rank observes the rows that it holds. Every few steps it
    measures one of the tables in turn: a sample of the rows that the last batch looked up (not of an `fb.Table`), and
    the next slice of the table, so that in time every row is measured. When a row is too long, its whole table is
    measured, so that the reason counts the runaway rows.

    `action` is "warn" (again whenever the longest row has doubled), "roll back" or "stop". Skipping a batch would not
    help, because a row grows over many of them. Raises `InvalidOption` for another action, or a limit not above 0.
    """

    needs_whole: ClassVar[bool] = True

    limit: float
    action: ActionWord | Action = field(default="warn", kw_only=True)
    tables: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", action_of(self.action))
        object.__setattr__(self, "tables", (self.tables,) if isinstance(self.tables, str) else tuple(self.tables))
        if not 0 < self.limit < math.inf:
            raise InvalidOption(f"limit={self.limit!r} is not a limit. Give a finite number above 0, e.g. 10.")
        if self.action is Action.SKIP:
            raise InvalidOption(
                'action="skip": no single batch makes a row too long. EmbeddingNorms can "warn", "roll back" or "stop".'
            )

    def attach(self, setup: TrainSetup) -> LiveEmbeddingNorms:
        """Return a `LiveMonitor` for one rank.

        Raises `InvalidOption` if the model has no table.
        """
        tables = list(_tables_of(setup.model, self.tables))
        tables += [TableNorms(each.name, each, None) for each in setup.parts.tables]
        if not tables:
            raise InvalidOption(
                f"EmbeddingNorms(tables={list(self.tables)}) found no embedding in {type(setup.model).__name__}. "
                f"Name its tables among {[name for name, p in setup.model.named_parameters() if p.dim() == 2]}."
            )
        return LiveEmbeddingNorms(self, tables)


class LiveEmbeddingNorms:
    """Active `EmbeddingNorms` on one rank."""

    def __init__(self, norms: EmbeddingNorms, tables: Sequence[TableNorms]) -> None:
        self._limit, self._action = norms.limit, action_of(norms.action)
        self._tables = tables
        self._turn = 0
        self._warned: dict[str, float] = {}
        self._measured: dict[str, float] = {}

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:  # noqa: ARG002 - it watches tables alone
        if step % EVERY == 0:
            table = self._next
            table.measure(self._limit, turn=self._turn // len(self._tables))
            table.is_next = False
            self._turn += 1
        # The table that is measured after the next step records the rows looked up by that step.
        self._next.is_next = (step + 1) % EVERY == 0

    def verdict(self) -> Verdict:
        seen = [table for table in self._tables if table.is_measured]
        if not seen:
            return Verdict()
        for table, (longest, runaway) in zip(
            seen, torch.stack([table.pop_norms() for table in seen]).tolist(), strict=True
        ):
            self._measured[f"embedding_norms/{table.name}/max_norm"] = longest
            self._measured[f"embedding_norms/{table.name}/runaway_rows"] = runaway
        reasons = [reason for table in seen if (reason := self._reason(table))]
        if not reasons:
            return Verdict()
        return Verdict(action=self._action, reason="EmbeddingNorms: " + "; ".join(reasons))

    def metrics(self) -> Mapping[str, float]:
        measured, self._measured = self._measured, {}
        return measured

    def state_dict(self) -> dict[str, Any]:
        places = {table.name: table.row for table in self._tables}
        return {"turn": self._turn, "is_next": self._next.is_next, "rows": places, "warned": dict(self._warned)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._turn, self._warned, self._measured = state["turn"], dict(state["warned"]), {}
        for table in self._tables:
            table.start(state["rows"].get(table.name, 0))
        self._next.is_next = state.get("is_next", False)

    @property
    def _next(self) -> TableNorms:
        """Table to measure next."""
        return self._tables[self._turn % len(self._tables)]

    def _reason(self, table: TableNorms) -> str | None:
        longest = self._measured[f"embedding_norms/{table.name}/max_norm"]
        if not longest > max(self._limit, 2 * self._warned.get(table.name, 0.0)):
            return None
        longest, row, runaway = table.measure_all(self._limit)
        self._measured[f"embedding_norms/{table.name}/max_norm"] = longest
        self._measured[f"embedding_norms/{table.name}/runaway_rows"] = float(runaway)
        if self._action is Action.WARN:
            self._warned[table.name] = longest
        return (
            f"{runaway:,} of the {table.num_rows:,} rows of {table} are longer than limit={self._limit:g}, the "
            f"longest is row {row} with {longest:.6g}"
        )


def _tables_of(model: nn.Module, patterns: Sequence[str]) -> Iterator[TableNorms]:
    """Yield each table once, even if two modules share it."""
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module.weight) not in seen:
            seen.add(id(module.weight))
            yield TableNorms(f"{module_name}.weight".lstrip("."), module.weight, module)
    for name, parameter in model.named_parameters():
        fits = any(fnmatchcase(name, pattern) for pattern in patterns)
        if fits and parameter.dim() == 2 and id(parameter) not in seen:
            seen.add(id(parameter))
            yield TableNorms(name, parameter, None)
