"""Readings of monitors: metrics of steps, and parameters that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forebay.training.state.metric import Metric, Scalar, scalar
from forebay.training.state.setup import LocalParts, LocalTable

CHUNK = 512
"""Values per tensor. A scalar takes a whole block of a GPU's memory, and so does a row of this many."""


OTHER_ROWS = ("val", "eval", "test", "held_out", "heldout")


def is_of_other_rows(name: str) -> bool:
    """Whether a metric is of rows that are not trained, by its name.

    >>> [is_of_other_rows(name) for name in ("loss", "validation_loss", "Eval/norm")]
    [False, True, True]
    """
    return name.lower().startswith(OTHER_ROWS)


@dataclass(frozen=True, slots=True)
class Reading:
    """Value of one metric in one step."""

    step: int
    name: str
    value: float


class DeferredMetrics:
    """Store of one number per step and name.

    `add` never waits for a device. `read_all` waits once.
    """

    def __init__(self) -> None:
        self._labels: list[tuple[int, str]] = []
        self._values: list[Scalar] = []
        self._chunks: list[_Chunk] = []

    def add(self, step: int, name: str, value: Metric) -> None:
        """Keep a copy of `value`."""
        self._labels.append((step, name))
        self._values.append(scalar(name, value))
        if len(self._values) >= CHUNK:
            self._close_chunk()

    def read_all(self) -> list[Reading]:
        """Return the readings since the last call, in order."""
        self._close_chunk()
        values = [value for chunk in self._chunks for value in chunk.read()]
        readings = [Reading(step, name, value) for (step, name), value in zip(self._labels, values, strict=True)]
        self.clear()
        return readings

    def clear(self) -> None:
        """Drop all values that were not read."""
        self._labels, self._values, self._chunks = [], [], []

    def _close_chunk(self) -> None:
        values, self._values = self._values, []
        if values:
            self._chunks.append(_Chunk(values))


class _Chunk:
    """Numbers, those of each device in one tensor."""

    def __init__(self, values: Sequence[Scalar]) -> None:
        self._numbers = [0.0 if isinstance(value, Tensor) else value for value in values]
        found: dict[torch.device, dict[int, Tensor]] = {}
        for index, value in enumerate(values):
            if isinstance(value, Tensor):
                found.setdefault(value.device, {})[index] = value
        self._on_devices = [([*each], torch.stack([*each.values()])) for each in found.values()]

    def read(self) -> list[float]:
        """Return all numbers, with one copy from each device."""
        for indices, numbers in self._on_devices:
            for index, number in zip(indices, numbers.tolist(), strict=True):
                self._numbers[index] = number
        return self._numbers


def bad_parameter(model: nn.Module, parts: LocalParts) -> str | None:
    """Return a parameter or table row with NaN or infinity.

    Waits for the device once. Buffers are not read: masks hold infinity.
    """
    values: list[tuple[str | LocalTable, Tensor]] = [
        (name, parts.value(parameter).detach()) for name, parameter in model.named_parameters()
    ]
    values += [(table, table.weight()) for table in parts.tables]
    watched = [(source, part) for source, part in values if part.is_floating_point() and part.numel()]
    # One pass at the speed of memory, read once. A sum of finite numbers may overflow. Then all are read.
    totals: dict[torch.device, list[Tensor]] = {}
    for _, parameter in watched:
        totals.setdefault(parameter.device, []).append(parameter.sum().double())
    if all(math.isfinite(torch.stack(found).sum().item()) for found in totals.values()):
        return None
    bad = ((source, part) for source, part in watched if not bool(torch.isfinite(part).all()))
    return next((_place_of(source, part) for source, part in bad), None)


def _place_of(source: str | LocalTable, values: Tensor) -> str:
    """Name the parameter or table rows with non-finite `values`."""
    if isinstance(source, str):
        return f"parameter {source!r}"
    rows = (~torch.isfinite(values)).any(1).nonzero()[:, 0]
    more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
    return f"row {source.id_of(int(rows[0]))}{more} of table {source}"
