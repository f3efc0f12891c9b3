"""A span of a tensor's elements on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPart:
    """Elements of a tensor from `start` on, in C order.

    `values` [any number] of a tensor of `shape`, on any device.

    A state has it in place of the tensor. The parts of all ranks have each element once.
    """

    shape: tuple[int, ...]
    start: int
    values: Tensor = field(repr=False)


def flat_span(value: Tensor | FlatPart, start: int, size: int) -> Tensor:
    """Return elements `start` to `start + size` of a tensor.

    A `FlatPart` must have exactly these.
    """
    if isinstance(value, FlatPart):
        if (value.start, value.values.numel()) != (start, size) and size:
            raise ValueError(f"a part of elements {value.start} and following is not that of element {start}")
        return value.values[:size]
    return value.reshape(-1)[start : start + size]
