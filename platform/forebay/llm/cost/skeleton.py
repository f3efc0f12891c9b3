"""Models without memory, with as many layers as needed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.source.tokenizers import import_transformers

Counted = TypeVar("Counted", int, float)


def skeleton(config: Any, adapter: Lora | None = None, *, attn: str = "eager") -> nn.Module:
    """Model of `config` with its adapter, on device "meta".

    It is in training mode.

    Experts are computed by one batched product, which has the FLOPs of the experts that a token uses. Other
    implementations look at the data, which is not there.
    """
    config = copy.deepcopy(config)
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "batched_mm"  # noqa: SLF001 - from_config hands no such option on to models
    transformers = import_transformers()
    with torch.device("meta"):
        try:
            # In the type that training loads, which need not be the files' type.
            found = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attn, dtype=torch.float32)
        except ValueError as error:
            raise InvalidOption(f"{type(config).__name__} is not of a causal language model ({error}).") from error
        model: nn.Module = found.train()
        return model if adapter is None else adapter.add_to(model).train()


def on_fake_cpu(
    model: nn.Module, *, frozen: torch.dtype = torch.float32, trained: torch.dtype = torch.float32
) -> nn.Module:
    """Replace the tensors of `model` by fake CPU tensors.

    Its frozen and its trained parameters get these types.

    Call it, and the model, within a `FakeTensorMode`.

    Operators see shapes, types and a device that has them all, autocast too. Tensors on "meta" have no autocast.
    """
    fakes: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - shared ones must stay shared
            for name, tensor in tensors.items():
                if tensor is not None:
                    fakes.setdefault(tensor, _fake(tensor, trained if tensor.requires_grad else frozen))
                    tensors[name] = fakes[tensor]  # type: ignore[assignment]
    return model


def _fake(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not isinstance(tensor, nn.Parameter):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return nn.Parameter(torch.empty(tensor.shape, dtype=dtype), requires_grad=tensor.requires_grad)


def with_layers(config: Any, layers: int) -> Any:
    """Copy of `config` with its first `layers` layers."""
    short = copy.deepcopy(config)
    if isinstance(types := getattr(short, "layer_types", None), list):
        short.layer_types = types[:layers]
    short.num_hidden_layers = layers
    return short


def num_layers(config: Any) -> int:
    """Number of layers."""
    return int(config.num_hidden_layers)


def over_layers(config: Any, count: Callable[[Any], Counted]) -> Counted:
    """Extrapolate `count` to all layers from one and two.

    Where layers are not all equal, the whole `config` is counted.

    The first layer may differ from the others: without a trained embedding, it has no gradient of its input.
    """
    layers = num_layers(config)
    if layers <= 2 or not has_equal_layers(config):
        return count(config)
    one, two = count(with_layers(config, 1)), count(with_layers(config, 2))
    return one + (layers - 1) * (two - one)


def num_parameters(model: nn.Module, *, trained_only: bool = False) -> int:
    """Number of parameters. Shared ones count once."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad or not trained_only)


def has_equal_layers(config: Any) -> bool:
    """Whether each layer has as many parameters as the second."""
    return _has_equal_layers(type(config), config.to_json_string(use_diff=False))  # type: ignore[arg-type]


@cache
def _has_equal_layers(kind: Any, config_json: str) -> bool:
    config = kind.from_dict(json.loads(config_json))
    one, two, whole = (
        num_parameters(skeleton(each)) for each in (with_layers(config, 1), with_layers(config, 2), config)
    )
    return one + (num_layers(config) - 1) * (two - one) == whole
