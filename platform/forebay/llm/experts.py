"""Experts of a mixture: their weights, and how they are computed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption

_GROUPED = "forebay_grouped_mm"
"""Name under which transformers knows `_grouped`."""


def expert_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Weights of experts: stacks of matrices, one for each expert.

    Yields the name of the module, the module, and the weight's own name in it. Weights in 4 bits are among them.
    """
    for name, module in model.named_modules():
        for own, _ in module.named_parameters(recurse=False):
            if is_stack(module, own):
                yield name, module, own


def is_stack(module: nn.Module, own: str) -> bool:
    """Whether parameter `own` of `module` is a stack of matrices, maybe in 4 bits."""
    # Convolutions have three dimensions too.
    if type(module).__module__.startswith("torch."):
        return False
    weight = getattr(module, own, None)
    return own in packed_shapes(module) or (isinstance(weight, nn.Parameter) and weight.dim() == 3)


def has_experts(model: nn.Module) -> bool:
    """Whether `model` is a mixture of experts."""
    return next(expert_weights(model), None) is not None


def group_experts(model: Any) -> None:
    """Let the experts of `model` compute by grouped products, in the type of autocast.

    transformers (5.19) computes them in the type of their weights, as autocast does not know grouped products.
    Architectures that transformers gives no choice keep their own form.
    """
    if has_experts(model):
        model.set_experts_implementation(_registered())


def check_packable(model: Any) -> None:
    """Check that experts of `model` can be held in 4 bits, if it has any.

    Raises `InvalidOption` for an architecture that computes them in a form of its own.
    """
    group_experts(model)
    if has_experts(model) and model.config._experts_implementation != _GROUPED:  # noqa: SLF001 - no public name
        raise InvalidOption(
            f"finetuning=qlora: {type(model).__name__} computes its experts in a form of its own, which has none in 4 "
            "bits. Choose finetuning=lora."
        )


@cache
def _registered() -> str:
    from transformers.integrations import moe  # noqa: PLC0415 - an extra, which takes seconds to import

    moe.ALL_EXPERTS_FUNCTIONS.register(_GROUPED, _grouped)
    return _GROUPED


def _grouped(module: Any, hidden: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
    """Outputs [tokens, width] of the experts that each token is routed to."""
    from transformers.integrations import moe  # noqa: PLC0415 - an extra, which takes seconds to import

    kind = hidden.device.type
    is_cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if is_cast else hidden.dtype
    weights: Any = _Weights(module, dtype)
    computed: Tensor = moe.grouped_mm_experts_forward(weights, hidden.to(dtype), experts, shares)
    return computed


class _Weights:
    """Module whose weights are read as `dtype`."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name in packed_shapes(self._module):
            return unpacked(self._module, name, self._dtype)
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


_SHAPES = "_forebay_packed_shapes"
_BLOCK = 64
"""Weights of a block, which share a scale."""
_PIECE = 1 << 16
"""Weights that are packed at a time, whole blocks."""


def packed_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Shapes of the weights of `module` that `pack` holds in 4 bits."""
    shapes: dict[str, torch.Size] = module.__dict__.get(_SHAPES, {})
    return shapes


def pack(module: nn.Module, own: str, quant_type: str, weight: Tensor) -> None:
    """Hold a stack of `module` in 4 bits, frozen: `weight`, which it has or will have.

    Its scales are a buffer, which moves with the module and is in no checkpoint.
    """
    from bitsandbytes import functional  # noqa: PLC0415 - an extra, which takes seconds to import

    # As one row: bitsandbytes (0.50) for CPUs begins a new block in each row that is shorter than one.
    # In pieces: it takes some 16 bytes of memory there for each weight that it rounds at a time.
    pieces = [
        functional.quantize_4bit(each, quant_type=quant_type, compress_statistics=False, blocksize=_BLOCK)
        for each in torch.split(weight.reshape(-1), _PIECE)
    ]
    packed = torch.cat([each for each, _ in pieces])
    setattr(module, own, nn.Parameter(packed, requires_grad=False))
    put_scales(module, own, torch.cat([state.absmax for _, state in pieces]))
    module.__dict__[_SHAPES] = {**packed_shapes(module), own: weight.shape}


def put_scales(module: nn.Module, own: str, scales: Tensor) -> None:
    """Give a packed stack its scales."""
    module.register_buffer(_scales(own), scales, persistent=False)


def take_scales(module: nn.Module, own: str) -> Tensor:
    """Take the scales of a packed stack away, for a while."""
    scales: Tensor = getattr(module, _scales(own))
    delattr(module, _scales(own))
    return scales


def unpacked(module: Any, own: str, dtype: torch.dtype) -> Tensor:
    """Stack that `pack` holds in 4 bits, as `dtype`."""
    from bitsandbytes import functional  # noqa: PLC0415 - an extra, which takes seconds to import

    state = functional.QuantState(
        absmax=getattr(module, _scales(own)),
        shape=(packed_shapes(module)[own].numel(),),
        dtype=dtype,
        blocksize=_BLOCK,
        quant_type="nf4",
    )
    values: Tensor = functional.dequantize_4bit(getattr(module, own), state)
    return values.view(packed_shapes(module)[own])


def _scales(own: str) -> str:
    return f"{own}_scales"
