"""Bytes that the forward pass keeps for the backward pass.

Counted without allocating memory.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from forebay.llm.adapters import Lora
from forebay.llm.cost.skeleton import num_layers, on_fake_cpu, skeleton, with_layers

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes kept by one pass of some rows.

    Attributes:
        kept: Bytes of activations.
        copies: Bytes of copies of weights in the type of the computation.
    """

    kept: int
    copies: int


def count_activations(
    config: Any, adapter: Lora | None, tokens: tuple[int, int], *, attn: str, is_bf16: bool, checkpointing: bool
) -> Activations:
    """Bytes that a forward pass keeps.

    Up to the last hidden states. `tokens` is (rows, tokens of a row).

    Operators run on fake tensors of a CPU, with one and two layers. "sdpa" keeps there what fused attention keeps on a
    GPU: no scores. With checkpointing, each layer keeps its input, and one layer at a time all of it.
    """
    count = partial(_kept, adapter, attn, is_bf16)
    (one, two), (one_copies, two_copies) = (
        [count(with_layers(config, layers), shape) for layers in (1, 2)] for shape in (tokens, (1, 1))
    )
    layer, layer_copies = two - one, two_copies - one_copies
    layers = num_layers(config)
    if checkpointing:
        inputs = layers * FLOAT_BYTES * tokens[0] * tokens[1] * config.hidden_size
        return Activations(kept=one - one_copies + inputs, copies=one_copies)
    copies = one_copies + (layers - 1) * layer_copies
    return Activations(kept=one + (layers - 1) * layer - copies, copies=copies)


def _kept(adapter: Lora | None, attn: str, is_bf16: bool, config: Any, tokens: tuple[int, int]) -> int:
    """Bytes of all storages saved for backward, without parameters."""
    model: Any = skeleton(config, adapter, attn=attn)
    inner: nn.Module = getattr(model, "get_base_model", lambda: model)().get_decoder()
    # Storages are kept alive while they are counted: a freed one would lend its address to the next.
    found: dict[int, tuple[int, Tensor]] = {}
    with FakeTensorMode():
        on_fake_cpu(model)
        weights = {each.untyped_storage()._cdata for each in model.parameters()}  # noqa: SLF001 - no public identity

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:  # noqa: SLF001
                found[storage._cdata] = (storage.nbytes(), tensor)  # noqa: SLF001
            return tensor

        ids = torch.zeros(tokens, dtype=torch.long)
        positions = torch.arange(tokens[1]).expand(tokens)
        autocast = torch.autocast("cpu", torch.bfloat16) if is_bf16 else nullcontext()
        with saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
            inner(input_ids=ids, position_ids=positions, use_cache=False)
        return sum(nbytes for nbytes, _ in found.values())
