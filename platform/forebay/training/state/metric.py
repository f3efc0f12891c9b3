"""Metrics and evaluations that a train function reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from forebay.errors import InvalidOption
from forebay.events import Sample

Scalar: TypeAlias = torch.Tensor | float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedMean:
    """A metric over some rows.

    `total` over the rows, and their number `weight`, which may be 0.

    Its mean over an epoch and all ranks counts every row once.
    """

    total: Scalar
    weight: Scalar


Metric: TypeAlias = torch.Tensor | float | WeightedMean


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of a function for `worker.evaluate_with`.

    Attributes:
        metrics: Metrics of the model. A tensor or number is the mean of its ranks' values.
        samples: Texts of the model. Only rank 0's count.
    """

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    samples: Sequence[Sample] = ()


def scalar(name: str, value: Metric) -> Scalar:
    """Return a copy of a metric without its graph.

    Never waits for the device. A mean over no rows is 0. A train function may overwrite its tensor with the next loss.

    Tensors become float64, because a sum of 10^5 float32 losses would be inexact. Raises `InvalidOption` for a tensor
    with more than one number.
    """
    if isinstance(value, WeightedMean):
        total, weight = scalar(name, value.total), scalar(name, value.weight)
        return total / (weight.clamp(min=1) if isinstance(weight, torch.Tensor) else max(weight, 1.0))
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1:
        raise InvalidOption(
            f"metric {name!r} has shape {tuple(value.shape)}, but a metric is one number. Give {name}.mean().",
            name=name,
        )
    return value.detach().reshape(()).to(torch.float64, copy=True)


def weighted(name: str, value: Metric) -> tuple[Scalar, Scalar]:
    """Return a metric's sum and weight.

    The weight of a single number is 1.

    Raises as `scalar`.
    """
    if isinstance(value, WeightedMean):
        return scalar(name, value.total), scalar(name, value.weight)
    return scalar(name, value), 1.0
