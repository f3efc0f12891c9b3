from __future__ import annotations

import torch

from forebay.errors import InvalidOption

Metric = torch.Tensor | float


def scalar(name: str, value: Metric) -> Metric:
    """Return a metric without its graph. Never waits for the device.

    Tensors become float64, because a sum of 10^5 float32 losses would be inexact. Raises `InvalidOption` for a tensor
    with more than one number.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1:
        raise InvalidOption(
            f"metric {name!r} has shape {tuple(value.shape)}, but a metric is one number. Give {name}.mean().",
            name=name,
        )
    return value.detach().reshape(()).double()
