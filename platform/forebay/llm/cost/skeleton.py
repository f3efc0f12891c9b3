"""Models without memory, with as many layers as needed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.experts import group_experts, has_experts
from forebay.llm.reward_head import HEAD, put_reward_head
from forebay.llm.source.tokenizers import import_transformers

Counted = TypeVar("Counted", int, float)
_FUSED = "forebay_fused"
"""Fused attention for counts, under a name that transformers asks no model about."""


def skeleton(config: Any, adapter: Lora | None = None, *, attn: str = "eager", by_pairs: bool = False) -> nn.Module:
    """Model of `config` with its adapter, on device "meta".

    It is in training mode, and experts are computed as a training does. Targets of the adapter may match none of its
    layers: give an adapter that is `explicit`. `by_pairs` computes experts for each pair of a token and an expert: that
    has the same FLOPs, and torch can count them.
    """
    transformers = import_transformers()
    with torch.device("meta"):
        model = _made(transformers, config, attn).train()
        if has_reward_head(config):
            put_reward_head(model)
        if not has_experts(model) or not by_pairs:
            group_experts(model)
            adapted: nn.Module = model if adapter is None else adapter.add_to(model, is_part=True).train()
            return adapted
        model.set_experts_implementation("batched_mm")
        return model if adapter is None else _with_trained_weights(model, adapter).train()


def has_reward_head(config: Any) -> bool:
    """Whether the model of `config` has a reward head."""
    return getattr(config, HEAD, "tokens") == "reward"


def _made(transformers: Any, config: Any, attn: str) -> Any:
    # In the type that training loads, which need not be the files' type.
    make = partial(transformers.AutoModelForCausalLM.from_config, dtype=torch.float32)
    try:
        return make(copy.deepcopy(config), attn_implementation=attn)
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise InvalidOption(f"{type(config).__name__} is not of a causal language model ({error}).") from error
    from transformers.integrations.sdpa_attention import (  # noqa: PLC0415 - an extra, which takes seconds to import
        sdpa_attention_forward,
    )

    # A model without sdpa, such as gpt-oss, has other fused ones, which keep as much.
    transformers.AttentionInterface.register(_FUSED, sdpa_attention_forward)
    return make(copy.deepcopy(config), attn_implementation=_FUSED)


def _with_trained_weights(model: nn.Module, adapter: Lora) -> nn.Module:
    """Model with the adapter, whose weights without a layer are trained themselves.

    peft adds the adapter to such a weight and needs the gradient of the sum: the weight costs as much.
    """
    targets = adapter.targets_in(model, is_part=True)
    adapted = replace(adapter, targets=targets.layers).add_to(model) if targets.layers else model.requires_grad_(False)
    for name, weight in adapted.named_parameters():
        if name.endswith(tuple(f".{each}" for each in targets.weights)):
            weight.requires_grad_()
    return adapted


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Layers of a model's decoder."""
    return max((each for each in model.modules() if isinstance(each, nn.ModuleList)), key=num_parameters)


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
    # Some derive their kinds from the number, such as Mamba.
    if isinstance(types := vars(short).get("layer_types"), list):
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
