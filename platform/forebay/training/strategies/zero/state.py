"""States under ZeRO, by logical name.

The names are the same in every strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forebay.training.strategies.flat_part import FlatPart, flat_span
from forebay.training.strategies.saved_model import NamedOptimizer
from forebay.training.strategies.zero.fragments import (
    Fragment,
    ZeroFragments,
    flat_states,
    held_part,
    held_span,
    is_partitioned,
    shape_of,
)
from forebay.training.strategies.zero.optimizer import ZeroOptimizer


class ZeroModel:
    """`Stateful` of a model under ZeRO.

    Its state holds parameters as `FlatPart` where ranks hold a part.
    """

    def __init__(self, model: nn.Module, fragments: ZeroFragments, rank: int) -> None:
        self._model, self._fragments, self._rank = model, fragments, rank

    def state_dict(self) -> dict[str, Any]:
        return {name: self._saved(tensor) for name, tensor in self._tensors().items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = self._tensors()
        if own.keys() != state_dict.keys():
            lacking, unknown = sorted(own.keys() - state_dict.keys()), sorted(state_dict.keys() - own.keys())
            raise RuntimeError(f"missing: {lacking}; unexpected: {unknown}")
        for name, tensor in own.items():
            if tuple(state_dict[name].shape) != shape_of(tensor):
                raise RuntimeError(
                    f"size mismatch for {name}: {list(state_dict[name].shape)} is saved, and the model has "
                    f"{list(shape_of(tensor))}"
                )
        with torch.no_grad():
            for name, tensor in own.items():
                self._load(tensor, state_dict[name])
        self._fragments.publish()

    def _tensors(self) -> dict[str, Tensor]:
        return dict(self._model.state_dict(keep_vars=True))

    def _saved(self, tensor: Tensor) -> Tensor | FlatPart:
        if (fragment := self._fragments.of(tensor)) is not None:
            return FlatPart(shape=shape_of(tensor), start=fragment.start, values=fragment.of(fragment.flat).detach())
        if is_partitioned(tensor):
            start, _ = held_span(tensor, self._rank)
            return FlatPart(shape=shape_of(tensor), start=start, values=held_part(tensor, self._rank))
        return tensor.detach()

    def _load(self, tensor: Tensor, value: Tensor | FlatPart) -> None:
        if (fragment := self._fragments.of(tensor)) is not None:
            fragment.of(fragment.flat).copy_(flat_span(value, fragment.start, fragment.size))
        elif is_partitioned(tensor):
            start, stop = held_span(tensor, self._rank)
            held_part(tensor, self._rank).copy_(flat_span(value, start, stop - start))
        else:
            assert isinstance(value, Tensor), "only what ranks hold in parts is read in parts"
            tensor.copy_(value)


class ZeroOptimizerState:
    """`Stateful` of an optimizer under ZeRO.

    Its state holds moments as `FlatPart`, by parameter name.
    """

    def __init__(self, model: nn.Module, optimizer: ZeroOptimizer, fragments: ZeroFragments) -> None:
        self._optimizer, self._fragments = optimizer, fragments
        self._named = NamedOptimizer(model, optimizer)

    def state_dict(self) -> dict[str, Any]:
        states, saved = flat_states(self._optimizer.base), dict[str, Any]()
        for name, parameter, fragment in self._trained():
            if state := states.get(fragment.flat):
                saved[name] = {key: _part_of(value, fragment, shape_of(parameter)) for key, value in state.items()}
        return {**self._optimizer.state_dict(), "state": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer.load_state_dict({**state_dict, "state": {}})
        self._optimizer.update_base()
        saved = self._named.named(self._named.numbered(state_dict["state"]))
        states = self._optimizer.base.state
        states.clear()
        with torch.no_grad():
            for name, parameter, fragment in self._trained():
                if name in saved:
                    _fill(states[fragment.flat], saved[name], fragment, shape_of(parameter))

    def _trained(self) -> Iterable[tuple[str, Tensor, Fragment]]:
        for name, parameter in zip(self._named.names, self._named.parameters, strict=True):
            if (fragment := self._fragments.of(parameter)) is not None:
                yield name, parameter, fragment


def _fill(state: dict[str, Any], saved: Mapping[str, Any], fragment: Fragment, shape: tuple[int, ...]) -> None:
    """Store a parameter's moments in its flat tensor's state."""
    for key, value in saved.items():
        if isinstance(value, Tensor | FlatPart) and tuple(value.shape) == shape and not _counts(key):
            if key not in state:
                state[key] = torch.zeros_like(fragment.flat)
            fragment.of(state[key]).copy_(flat_span(value, fragment.start, fragment.size))
        else:
            # One number for all parameters of the flat tensor, such as the steps of Adam.
            state[key] = value.clone() if isinstance(value, Tensor) else value


def _part_of(value: Any, fragment: Fragment, shape: tuple[int, ...]) -> Any:
    if isinstance(value, Tensor) and value.shape == fragment.flat.shape and value.dim() == 1:
        return FlatPart(shape=shape, start=fragment.start, values=fragment.of(value).detach())
    # A copy: a state read again has shared tensors as shared ones, and every parameter would count its steps there.
    return value.clone() if isinstance(value, Tensor) else value


def _counts(key: str) -> bool:
    return key == "step"
