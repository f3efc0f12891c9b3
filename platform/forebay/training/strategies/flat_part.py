"""Part of a tensor that a rank holds as a span of its elements, regardless of rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPart:
    """Elements `start` and following of a tensor of `shape`, in C order: `values` [any number], on any device.

    A state has it in place of the tensor. The parts of all ranks have each element once.
    """

    shape: tuple[int, ...]
    start: int
    values: Tensor = field(repr=False)


def flat_span(value: Tensor | FlatPart, start: int, size: int) -> Tensor:
    """Return elements `start` to `start + size` of a saved tensor, of which a `FlatPart` must have exactly these."""
    if isinstance(value, FlatPart):
        if (value.start, value.values.numel()) != (start, size) and size:
            raise ValueError(f"a part of elements {value.start} and following is not that of element {start}")
        return value.values[:size]
    return value.reshape(-1)[start : start + size]
