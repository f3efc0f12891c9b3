"""Fragments of parameters that a rank trains under ZeRO.

A span of elements within a flat tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Elements of a parameter that this rank trains.

    From `start` to `start + size`, in C order.

    They are elements `offset` and following of `flat`, the tensor that the optimizer steps on.
    """

    flat: Tensor = field(repr=False)
    offset: int
    start: int
    size: int

    def of(self, flat: Tensor) -> Tensor:
        """Cut this fragment from a tensor laid out like `flat`."""
        return flat.narrow(0, self.offset, self.size)


class ZeroFragments:
    """Fragments of an engine's parameters, and their gradients.

    `stage` is ZeRO's.
    """

    def __init__(self, engine: Any, stage: int, rank: int) -> None:
        self._zero, self._is_third = engine.optimizer, stage == 3
        found = _third(self._zero, rank) if self._is_third else _first(self._zero)
        self._fragments: dict[Tensor, Fragment] = {}
        self._places: dict[Tensor, tuple[int, int]] = {}
        for parameter, fragment, place in found:
            self._fragments[parameter], self._places[parameter] = fragment, place

    def of(self, parameter: Tensor) -> Fragment | None:
        """Return a parameter's fragment.

        None if it is not trained.
        """
        return self._fragments.get(parameter)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the fragment's reduced gradient, or None.

        It may be changed in place.
        """
        fragment, place = self._fragments.get(parameter), self._places.get(parameter)
        if fragment is None or place is None or fragment.size == 0:
            return None
        if fragment.flat.grad is not None:
            return fragment.of(fragment.flat.grad)
        gradients = self._zero.averaged_gradients.get(place[0])
        return None if gradients is None else gradients[place[1]].view(-1)[: fragment.size]

    def publish(self) -> None:
        """Broadcast the values of all fragments.

        Call it after they were changed.
        """
        if not self._is_third:
            self._zero.update_lp_params()
            return
        for group in range(len(self._zero.fp16_groups)):
            self._zero._reassign_or_swap_out_partitioned_parameters(group)  # noqa: SLF001


def _first(zero: Any) -> Iterator[tuple[Tensor, Fragment, tuple[int, int]]]:
    """Fragments of stages 1 and 2.

    A rank holds an equal share of each group's parameters, one after another.
    """
    for group, parameters in enumerate(zero.bit16_groups):
        flat, numbers = zero.single_partition_of_fp32_groups[group], _numbers(zero.params_in_partition[group])
        for parameter in parameters:
            mapping = parameter._hp_mapping  # noqa: SLF001
            if mapping is None:
                yield parameter, Fragment(flat=flat, offset=0, start=0, size=0), (group, -1)
                continue
            own, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
            fragment = Fragment(flat=flat, offset=own.start, start=whole.start, size=own.numel)
            yield parameter, fragment, (group, numbers[id(parameter)])


def _third(zero: Any, rank: int) -> Iterator[tuple[Tensor, Fragment, tuple[int, int]]]:
    """Fragments of stage 3: equal shares of each parameter."""
    for group, parameters in enumerate(zero.fp16_groups):
        offset = 0
        for number, parameter in enumerate(parameters):
            start, stop = held_span(parameter, rank)
            flat = zero.fp32_partitioned_groups_flat[group]
            yield parameter, Fragment(flat=flat, offset=offset, start=start, size=stop - start), (group, number)
            offset += parameter.partition_numel()


def held_span(parameter: Any, rank: int) -> tuple[int, int]:
    """Return the range of a parameter's elements in stage 3.

    The first, and one past the last.
    """
    share, size = parameter.partition_numel(), parameter.ds_numel
    return min(rank * share, size), min((rank + 1) * share, size)


def held_part(parameter: Any, rank: int) -> Tensor:
    """Return a rank's elements of a parameter in stage 3.

    In the type it computes with.
    """
    start, stop = held_span(parameter, rank)
    held: Tensor = parameter.ds_tensor.data.view(-1)[: stop - start]
    return held


def is_partitioned(parameter: Tensor) -> bool:
    """Whether stage 3 has split a parameter."""
    return hasattr(parameter, "ds_tensor")


def shape_of(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of a parameter before it was split."""
    return tuple(parameter.ds_shape if is_partitioned(parameter) else parameter.shape)  # type: ignore[attr-defined]


def flat_states(base: torch.optim.Optimizer) -> Mapping[Tensor, dict[str, Any]]:
    """Return an optimizer's states by flat tensor."""
    states: Mapping[Tensor, dict[str, Any]] = base.state
    return states


def _numbers(parameters: list[Tensor]) -> dict[int, int]:
    return {id(parameter): number for number, parameter in enumerate(parameters)}
