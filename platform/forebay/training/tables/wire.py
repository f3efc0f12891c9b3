"""Encoding of rows between ranks: 32 or 16 bits."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from forebay.errors import InvalidOption

WireName = Literal["float32", "bfloat16", "float16"]
"""Form of rows and gradients between ranks."""
_SCALE_BYTES = 4


def validate_wire(wire: str) -> None:
    """Raises `InvalidOption` for an unknown form."""
    if wire not in get_args(WireName):
        known = ", ".join(map(repr, get_args(WireName)))
        raise InvalidOption(f"wire={wire!r} is unknown. Choose one of {known}.", wire=wire)


def row_bytes(dim: int, wire: WireName) -> int:
    """Return the bytes of a row of `dim` numbers.

    >>> row_bytes(16, "float32"), row_bytes(16, "bfloat16"), row_bytes(16, "float16")
    (64, 32, 36)
    """
    return {"float32": 4 * dim, "bfloat16": 2 * dim, "float16": 2 * dim + _SCALE_BYTES}[wire]


def to_wire(rows: Tensor, wire: WireName) -> Tensor:
    """Return float32 rows [n, dim] as they travel.

    "float16" has the largest number of each row beside it, and its numbers are shares of that: gradients of a large
    batch would be below its smallest number.
    """
    if wire == "float32":
        return rows
    if wire == "bfloat16":  # As bytes: not all backends know the type.
        return rows.to(torch.bfloat16).view(torch.uint8)
    scale = rows.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
    return torch.cat([(rows / scale).half().view(torch.uint8), scale.view(torch.uint8)], dim=1)


def from_wire(received: Tensor, dim: int, wire: WireName) -> Tensor:
    """Return the float32 rows [n, dim] that `to_wire` packed."""
    if wire == "float32":
        return received
    if wire == "bfloat16":
        return received.view(torch.bfloat16).float()
    numbers = received[:, : 2 * dim].contiguous().view(torch.float16).float()
    return numbers * received[:, 2 * dim :].contiguous().view(torch.float32)
