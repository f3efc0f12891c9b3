"""Sharded states of models and optimizers.

Saved by rank, loaded from parts or from wholes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from forebay.training.checkpoint.parts.contents import Region
from forebay.training.checkpoint.parts.part import FlatChunk, LocalChunk
from forebay.training.checkpoint.parts.table import named, scalar
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.strategies.saved_model import NamedOptimizer


class ShardedModel:
    """`Stateful` of a model with sharded parameters.

    They are `DTensor` in its state.

    It loads whole ones too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        state = self._model.state_dict()
        first: dict[int, str] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            # A tied weight is one object here, so it is written once.
            if name in state and (other := first.setdefault(id(parameter), name)) != name:
                state[name] = state[other]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        own = self._model.state_dict()
        return self._model.load_state_dict({name: _like(own.get(name), value) for name, value in state_dict.items()})


class ShardedOptimizer:
    """`Stateful` of an optimizer with sharded parameters.

    Its state holds moments as `DTensor`, by parameter name.

    It loads whole moments too, and those by number.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._named = NamedOptimizer(model, optimizer)

    def state_dict(self) -> dict[str, Any]:
        state = self._named.state_dict()
        return {**state, "state": self._named.named(state["state"])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = self._named.parameters
        moments = {
            number: {key: _like(own[number], value) for key, value in values.items()}
            for number, values in self._named.numbered(state_dict["state"]).items()
        }
        self._named.load_state_dict({**state_dict, "state": moments})


def split_shards(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, LocalChunk]]:
    """Split `state` into common values and this rank's chunks.

    Chunks of sharded tensors are by logical name.

    The former names the sharded tensors in their places, and has scalars as numbers (`checkpoint/parts/table.py`).
    One tensor in several places has the name of the first.
    """
    chunks: dict[str, LocalChunk] = {}
    names: dict[int, str] = {}
    places: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def name(path: str, leaf: DTensor | FlatPart) -> dict[str, str]:
        if (known := names.setdefault(id(leaf), path)) != path:
            return named(known)
        if isinstance(leaf, FlatPart):
            chunks[path] = FlatChunk(shape=leaf.shape, offsets=(leaf.start,), values=leaf.values)
            return named(path)
        layout = (leaf.shape, leaf.device_mesh, leaf.placements)
        if layout not in places:  # Few layouts are different, and finding the offsets takes most of the time here.
            places[layout] = tuple(compute_local_shape_and_global_offset(*layout)[1])
        chunks[path] = LocalChunk(shape=tuple(leaf.shape), offsets=places[layout], values=_local(leaf))
        return named(path)

    with torch.no_grad():  # A local tensor that autograd follows takes longer to make.
        return {key: _mapped(value, key, name) for key, value in state.items()}, chunks


def sharded_region(shape: tuple[int, ...], mesh: DeviceMesh) -> Region:
    """Return offsets and sizes of this rank's part.

    Of a tensor that `fully_shard` splits.
    """
    sizes, offsets = compute_local_shape_and_global_offset(torch.Size(shape), mesh, [Shard(0)])
    return tuple(offsets), tuple(sizes)


def sharded(local: Tensor, shape: tuple[int, ...], mesh: DeviceMesh) -> DTensor:
    """Build the sharded tensor whose local part is `local`.

    Of `shape`, as `fully_shard` splits it.
    """
    stride = torch.empty(shape, device="meta").stride()
    found: DTensor = DTensor.from_local(
        local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
    )
    return found


def _mapped(state: Any, path: str, change: Callable[[str, DTensor | FlatPart], Any]) -> Any:
    if isinstance(state, DTensor | FlatPart):
        return change(path, state)
    if isinstance(state, Tensor):
        return state if state.dim() or state.is_complex() else scalar(state)
    if isinstance(state, Mapping):
        return {key: _mapped(value, f"{path}.{key}", change) for key, value in state.items()}
    if isinstance(state, list | tuple) and any(isinstance(each, DTensor | Mapping | list | tuple) for each in state):
        return type(state)(_mapped(value, f"{path}.{index}", change) for index, value in enumerate(state))
    return state


def _like(own: object, value: Any) -> Any:
    """Return `value` in the layout of `own`.

    This rank's part, if `own` is sharded and `value` is whole.
    """
    is_whole = isinstance(value, Tensor) and not isinstance(value, DTensor)
    if not (is_whole and isinstance(own, DTensor) and value.shape == own.shape):
        return value
    part = value
    for dim, (offset, size) in enumerate(zip(*sharded_region(tuple(value.shape), own.device_mesh), strict=True)):
        part = part.narrow(dim, offset, size)
    return sharded(part.to(own.device, copy=True).contiguous(), tuple(value.shape), own.device_mesh)


def _local(tensor: DTensor) -> Tensor:
    return tensor.to_local()
