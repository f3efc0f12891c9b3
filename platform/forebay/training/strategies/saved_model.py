"""Saved states of models and optimizers, by logical name.

They hold no frozen parameters and no tied names, and do not depend on a strategy's layout of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.errors import BadJob
from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.collective import Collective
from forebay.training.state.stateful import Stateful

BLOCK = 1 << 20
"""Elements of a frozen parameter that are added up at a time."""
FACTOR = 1_000_003
Agree = Callable[[set[str]], set[str]]
"""Function that returns the union of the names on all ranks that call it."""


class FrozenBase:
    """Checksums of a model's frozen parameters, as a `Stateful`.

    `model` has whole parameters.

    A run continues with the parameters that it started with, or not at all.
    """

    def __init__(self, model: nn.Module) -> None:
        self._sums = {name: _checksum(parameter) for name, parameter in _frozen(model).items()}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def state_dict(self) -> dict[str, Any]:
        return {"xxh3_128": dict(self._sums)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        found = state_dict["xxh3_128"]
        other = [name for name, value in self._sums.items() if found.get(name, value) != value]
        if other:
            raise ValueError(
                f"{len(other)} frozen parameters, such as {other[0]}, are not those that the run started with: build "
                "the model from the same weights"
            )


class SavedModel:
    """`Stateful` of a model.

    `inner` has the state of all of it.

    Frozen parameters are left out of the state while they are what they were at the start. `value_of` returns this
    rank's part of a parameter, and `agree` makes ranks that save together leave out the same.
    """

    def __init__(self, model: nn.Module, inner: Stateful, value_of: Callable[[Tensor], Tensor], agree: Agree) -> None:
        self._inner, self._value_of, self._agree = inner, value_of, agree
        names: dict[int, str] = {}
        tensors = model.state_dict(keep_vars=True)
        # An extra state is any object: two modules with an equal small number there are not tied.
        self._tied = {
            name: first
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor) and (first := names.setdefault(id(tensor), name)) != name
        }
        self._frozen = {name: each for name, each in _frozen(model).items() if name not in self._tied}
        self._marks = self._marked()

    def state_dict(self) -> dict[str, Any]:
        left_out = self._tied.keys() | (self._frozen.keys() - self._agree(self._changed()) if self._frozen else set())
        return {name: value for name, value in self._inner.state_dict().items() if name not in left_out}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        lacking = self._frozen.keys() - state_dict.keys()
        if stale := sorted(lacking & self._changed()):
            raise ValueError(
                f"{stale[0]} was frozen when the checkpoint was saved, and has changed since. Let the optimizer train "
                "it, or make it a buffer"
            )
        own = self._inner.state_dict() if lacking else {}
        whole = {**state_dict, **{name: own[name] for name in lacking}}
        for name, first in self._tied.items():
            if first in whole:
                whole.setdefault(name, whole[first])
        self._inner.load_state_dict(whole)

    def _changed(self) -> set[str]:
        return {name for name, mark in self._marked().items() if mark != self._marks[name]}

    def _marked(self) -> Mapping[str, str | int]:
        return {name: _mark(self._value_of(each).detach()) for name, each in self._frozen.items()}


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    tensors = model.state_dict(keep_vars=True).items()
    return {name: each for name, each in tensors if isinstance(each, nn.Parameter) and not each.requires_grad}


def _mark(values: Tensor) -> str | int:
    """Return a number that changes with the values.

    On a CPU a checksum, which is fast there, elsewhere a sum.
    """
    return _checksum(values) if values.device.type == "cpu" else sum_of_bits(values)


def _checksum(values: Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def sum_of_bits(values: Tensor) -> int:
    """Return a weighted sum of the bits of `values`.

    Computed on their device; order and signs count too.

    It takes one block at a time: all values as int64 could take the memory of a parameter twice.
    """
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    weights = torch.arange(1, 2 * BLOCK, 2, device=values.device)
    for block in torch.split(values.contiguous().reshape(-1).view(size), BLOCK):
        total = total * FACTOR + (block * weights[: len(block)]).sum()
    return int(total)


class NamedOptimizer:
    """`Stateful` of an optimizer.

    It saves as the optimizer does, and loads moments by number or by parameter name.

    `model` has the parameters of the optimizer.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.optimizer = optimizer
        self.parameters: list[Tensor] = [each for group in optimizer.param_groups for each in group["params"]]
        self.names = [names.get(id(parameter), str(number)) for number, parameter in enumerate(self.parameters)]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state. Raises `BadJob` for sparse moments, which have no bytes to save."""
        state = self.optimizer.state_dict()
        sparse = [
            (number, key)
            for number, moments in state["state"].items()
            for key, each in moments.items()
            if isinstance(each, Tensor) and each.is_sparse
        ]
        if sparse:
            number, key = sparse[0]
            raise BadJob(
                f"{type(self.optimizer).__name__} keeps {key!r} of {self.names[number]!r} as a sparse tensor, and "
                "checkpoints cannot hold one. Build the embedding with sparse=False, use momentum=0 or SparseAdam, or "
                "take an fb.Table.",
                parameter=self.names[number],
            )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict({**state_dict, "state": self.numbered(state_dict["state"])})

    def named(self, state: Mapping[int, Any]) -> dict[str, Any]:
        """Return moments by the name of their parameter."""
        return {self.names[number]: values for number, values in state.items()}

    def numbered(self, state: Mapping[int | str, Any]) -> dict[int, Any]:
        """Return moments by the number of their parameter.

        Raises `KeyError` for a name that the model lacks.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        return {key if isinstance(key, int) else numbers[key]: values for key, values in state.items()}


def whole_states(model: nn.Module, optimizer: Optimizer, base: FrozenBase) -> Mapping[str, Stateful]:
    """Return the states that each rank holds as a whole.

    Of a model and its optimizer.

    Rank 0 alone saves them.
    """
    saved = SavedModel(model, model, lambda parameter: parameter, lambda names: names)
    return with_base({"model": saved, "optimizer": NamedOptimizer(model, optimizer)}, base)


def with_base(states: Mapping[str, Stateful], base: FrozenBase) -> Mapping[str, Stateful]:
    """Add the state of frozen parameters to `states`, if any.

    It comes first, so that another base loads nothing.
    """
    return {"frozen_base": base, **states} if base else states


def agreement(collective: Collective) -> Callable[[set[str]], set[str]]:
    """Return the function that unites names over all ranks."""
    return lambda names: collective.combine(names, lambda of_ranks: set().union(*of_ranks))


def whole_region(shape: tuple[int, ...]) -> Region:
    """Region of all of a tensor."""
    return (0,) * len(shape), shape


def named_tensor(path: str) -> str:
    """Return the parameter that a checkpoint's tensor belongs to.

    By the name under which a part has the tensor.

    >>> named_tensor("model.layers.0.weight"), named_tensor("optimizer.state.layers.0.weight.exp_avg")
    ('layers.0.weight', 'layers.0.weight')
    """
    if path.startswith("optimizer.state."):
        return path.removeprefix("optimizer.state.").rpartition(".")[0]
    return path.removeprefix("model.") if path.startswith("model.") else ""
