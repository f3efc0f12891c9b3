"""Step metrics that stay on the device until read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forebay.training.state.metric import Metric, Scalar, scalar

CHUNK = 512
"""Values per tensor. A scalar takes a whole block of a GPU's memory, and so does a row of this many."""


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
        self._chunks: list[list[float] | Tensor] = []

    def add(self, step: int, name: str, value: Metric) -> None:
        """Keep a copy of `value`.

        A train function may overwrite its tensor with the next loss.
        """
        number = scalar(name, value)
        if isinstance(number, Tensor) and isinstance(value, Tensor) and number.data_ptr() == value.data_ptr():
            number = number.clone()
        self._labels.append((step, name))
        self._values.append(number)
        if len(self._values) >= CHUNK:
            self._close_chunk()

    def read_all(self) -> list[Reading]:
        """Return the readings since the last call, in order."""
        self._close_chunk()
        values = [value for chunk in self._chunks for value in (chunk if isinstance(chunk, list) else chunk.tolist())]
        readings = [Reading(step, name, value) for (step, name), value in zip(self._labels, values, strict=True)]
        self.clear()
        return readings

    def clear(self) -> None:
        """Drop all values that were not read."""
        self._labels, self._values, self._chunks = [], [], []

    def _close_chunk(self) -> None:
        values, self._values = self._values, []
        tensors = [value for value in values if isinstance(value, Tensor)]
        if len(tensors) == len(values) and len({tensor.device for tensor in tensors}) == 1:
            self._chunks.append(torch.stack(tensors))
        else:
            self._chunks.append([float(value) for value in values])
