"""Part of each parameter that a rank trains under ZeRO: a span of its elements within a flat tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Elements `start` to `start + size` of a trained parameter, in C order, which this rank trains.

    They are elements `offset` and following of `flat`, the tensor that the optimizer steps on.
    """

    flat: Tensor = field(repr=False)
    offset: int
    start: int
    size: int

    def of(self, flat: Tensor) -> Tensor:
        """Return this fragment of a tensor that is laid out as `flat` is."""
        return flat.narrow(0, self.offset, self.size)


class ZeroFragments:
    """Fragments of all trained parameters of one engine, and their gradients.

    `stage` is that of ZeRO.
    """

    def __init__(self, engine: Any, stage: int, rank: int) -> None:
        self._zero, self._is_third = engine.optimizer, stage == 3
        found = _third(self._zero, rank) if self._is_third else _first(self._zero)
        self._fragments: dict[Tensor, Fragment] = {}
        self._places: dict[Tensor, tuple[int, int]] = {}
        for parameter, fragment, place in found:
            self._fragments[parameter], self._places[parameter] = fragment, place

    def of(self, parameter: Tensor) -> Fragment | None:
        """Return the fragment of a parameter, or None if it is not trained."""
        return self._fragments.get(parameter)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the reduced gradient of the fragment, to be read or changed in place, or None if there is none."""
        fragment, place = self._fragments.get(parameter), self._places.get(parameter)
        if fragment is None or place is None or fragment.size == 0:
            return None
        if fragment.flat.grad is not None:
            return fragment.of(fragment.flat.grad)
        gradients = self._zero.averaged_gradients.get(place[0])
        return None if gradients is None else gradients[place[1]].view(-1)[: fragment.size]

    def publish(self) -> None:
        """Give all ranks the values of all fragments: call it after they were changed."""
        if not self._is_third:
            self._zero.update_lp_params()
            return
        for group in range(len(self._zero.fp16_groups)):
            self._zero._reassign_or_swap_out_partitioned_parameters(group)  # noqa: SLF001


def _first(zero: Any) -> Iterator[tuple[Tensor, Fragment, tuple[int, int]]]:
    """Fragments of stages 1 and 2: a rank holds an equal share of each group's parameters, one after another."""
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
    """Fragments of stage 3: a rank holds an equal share of each parameter."""
    for group, parameters in enumerate(zero.fp16_groups):
        offset = 0
        for number, parameter in enumerate(parameters):
            start, stop = held_span(parameter, rank)
            flat = zero.fp32_partitioned_groups_flat[group]
            yield parameter, Fragment(flat=flat, offset=offset, start=start, size=stop - start), (group, number)
            offset += parameter.partition_numel()


def held_span(parameter: Any, rank: int) -> tuple[int, int]:
    """Return the first element of a parameter that a rank holds in stage 3, and the one after its last."""
    share, size = parameter.partition_numel(), parameter.ds_numel
    return min(rank * share, size), min((rank + 1) * share, size)


def held_part(parameter: Any, rank: int) -> Tensor:
    """Return the elements of a parameter that a rank holds in stage 3, in the type it computes with."""
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
    """Return the states of an optimizer by the flat tensors it steps on."""
    states: Mapping[Tensor, dict[str, Any]] = base.state
    return states


def _numbers(parameters: list[Tensor]) -> dict[int, int]:
    return {id(parameter): number for number, parameter in enumerate(parameters)}
