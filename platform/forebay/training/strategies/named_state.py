"""States of models and optimizers by logical name.

They do not depend on a strategy's layout of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.collective import Collective
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.saved_model import FrozenBase, SavedModel


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
        return self.optimizer.state_dict()

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
    return lambda names: set().union(*collective.all_gather_object(names))


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
