"""This rank's rows of a table, with optimizer state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forebay.training.tables.layout import TableLayout
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.start_values import start_rows

WEIGHT, DECAYED = "weight", "decayed"
_PIECE_ROWS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Facts of a table that its start values depend on.

    Beside the seed of the job.

    `name` is its path in the model.
    """

    name: str
    rows: int
    dim: int
    scale: float
    seed: int = 0

    def row_bytes(self, optimizer: RowOptimizer) -> int:
        """Return the bytes of a row in memory, with its state."""
        return 4 * self.dim + optimizer.state_bytes(self.dim)


class OwnedRows:
    """Rows at the positions `begin` to `end` of a table.

    They get their start values at the first use.

    `tensors` has `weight` [rows, dim] and the state of `optimizer`, [rows, dim] or [rows]. With weight decay it has
    `decayed` too, float64 [rows]: the logarithm of the decay up to which a row has caught up.
    """

    def __init__(self, facts: TableFacts, span: tuple[int, int], optimizer: RowOptimizer, device: torch.device) -> None:
        self.begin, self.end = span
        self.facts, self.optimizer = facts, optimizer
        self._device = device
        self._tensors: dict[str, Tensor] | None = None
        self.decay = 0.0
        """Logarithm of the decay of all steps so far."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        if self._tensors is None:
            self._tensors = {WEIGHT: self._start_rows().to(self._device)}
            for moment in self.shapes().keys() - {WEIGHT}:
                self._tensors[moment] = self._zeros(moment)
        return self._tensors

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and their state."""
        return (self.end - self.begin) * self.facts.row_bytes(self.optimizer)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the whole table's tensors."""
        rows, dim = self.facts.rows, self.facts.dim
        per_element = {WEIGHT: True, **self.optimizer.moments}
        shapes: dict[str, tuple[int, ...]] = {
            name: (rows, dim) if wide else (rows,) for name, wide in per_element.items()
        }
        return {**shapes, DECAYED: (rows,)} if self.optimizer.weight_decay else shapes

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors of these rows from a checkpoint.

        Missing state begins at 0, as the decay of a run that had none.
        """
        self._tensors = {name: tensors[name] if name in tensors else self._zeros(name) for name in self.shapes()}

    def read(self, local: Tensor) -> Tensor:
        """Copy the rows at `local`: float32 [n, dim].

        Counted from `begin`.
        """
        rows = self.tensors[WEIGHT].index_select(0, local)
        # Not written back: replicas must round alike, and their ranks read different rows.
        return rows * self._behind(local) if self.optimizer.weight_decay else rows

    def update(self, local: Tensor, gradient: Tensor, step: int, lr: float) -> None:
        """Make step `step`, from 1, with gradients [n, dim].

        They are of the rows at `local`, each once.
        """
        if self.optimizer.weight_decay:
            self.decay += math.log1p(-lr * self.optimizer.weight_decay)
            self._catch_up(local)
        moments = {name: self.tensors[name] for name in self.optimizer.moments}
        state = {name: values.index_select(0, local) for name, values in moments.items()}
        change = self.optimizer.change(gradient, state, step=step, lr=lr)
        self.tensors[WEIGHT].index_add_(0, local, change, alpha=-1)
        for name, values in moments.items():
            values.index_copy_(0, local, state[name])

    def caught_up(self) -> Tensor:
        """Return the weights [rows, dim], fully decayed."""
        weight = self.tensors[WEIGHT]
        return decayed(weight, self.tensors[DECAYED], self.decay) if self.optimizer.weight_decay else weight

    def _catch_up(self, local: Tensor) -> None:
        tensors = self.tensors
        tensors[WEIGHT].index_copy_(0, local, tensors[WEIGHT].index_select(0, local) * self._behind(local))
        tensors[DECAYED].index_fill_(0, local, self.decay)

    def _behind(self, local: Tensor) -> Tensor:
        return _factor(self.tensors[DECAYED].index_select(0, local), self.decay)

    def _start_rows(self) -> Tensor:
        facts, layout = self.facts, TableLayout(self.facts.rows)
        weight = torch.empty(self.end - self.begin, facts.dim)
        # In pieces: the ids of all rows would take 8 bytes a row, and several times that while they are made.
        for begin in range(self.begin, self.end, _PIECE_ROWS):
            end = min(begin + _PIECE_ROWS, self.end)
            rows = start_rows(layout.ids(begin, end), facts.dim, seed=facts.seed, table=facts.name, scale=facts.scale)
            weight[begin - self.begin : end - self.begin] = rows
        return weight

    def _zeros(self, name: str) -> Tensor:
        shape = (self.end - self.begin, *self.shapes()[name][1:])
        kind = torch.float64 if name == DECAYED else torch.float32
        return torch.zeros(shape, dtype=kind, device=self._device)


def decayed(weight: Tensor, caught_up: Tensor, decay: float) -> Tensor:
    """Return `weight` [rows, dim] decayed up to `decay`.

    `caught_up` [rows] is the decay that each row already has.
    """
    return weight * _factor(caught_up, decay)


def _factor(caught_up: Tensor, decay: float) -> Tensor:
    return (decay - caught_up).exp().float().unsqueeze(1)
