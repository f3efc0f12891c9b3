"""FLOPs of training, counted once without allocating memory.

Right for adapters, packed rows and any architecture.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.cost.skeleton import over_layers, skeleton, with_layers

Count = TypeVar("Count", float, torch.Tensor)
SHORT, LONG = 256, 512
"""Lengths of the two documents that are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFlops:
    """FLOPs of a forward and backward pass, as two coefficients.

    `linear` counts for each token, and `squared` for the square of a document's length.

    Attention is thereby charged for documents, and not for the row that they are packed in. `output` is the part of
    `linear` that is the output layer's, which a loss over targets computes for targets only.
    """

    linear: float
    squared: float
    output: float = 0.0

    def of(self, tokens: Count, squares: Count) -> Count:
        """FLOPs of documents, packed or not.

        `tokens` is the sum of their lengths, `squares` the sum of their squares.
        """
        return self.linear * tokens + self.squared * squares


def count_flops(config: Any, adapter: Lora | None = None) -> TokenFlops:
    """Count the FLOPs of training the model of `config`.

    With an `adapter`, nothing else is trained.

    Two counts give both coefficients. Models of equal layers are counted with one and two of them, which is exact.
    Recomputed activations are not counted, and attention has no discount for the half that is masked.

    A token costs the experts that it is routed to. Raises `InvalidOption` for a model that looks at its data.
    """
    if adapter is not None:
        adapter = adapter.explicit(skeleton(config))
    short, long = (over_layers(config, partial(_counted, adapter, length)) for length in (SHORT, LONG))
    squared = (long / LONG - short / SHORT) / (LONG - SHORT)
    return TokenFlops(linear=short / SHORT - squared * SHORT, squared=squared, output=_of_output_layer(adapter, config))


def _counted(adapter: Lora | None, length: int, config: Any) -> int:
    """FLOPs of one document of `length` tokens."""
    # Fused attention is counted wrongly: not at all on the CPU, with its recomputation on GPUs.
    model = skeleton(config, adapter, attn="eager", by_pairs=True)
    with torch.device("meta"):
        inputs = one_document(model, length)
    try:
        with FlopCounterMode(display=False) as counter:
            model(**inputs, use_cache=False).logits.sum().backward()
    except (NotImplementedError, RuntimeError) as error:
        raise InvalidOption(
            f"FLOPs of {type(config).__name__} cannot be counted without data ({type(error).__name__}: {error})."
        ) from error
    return int(counter.get_total_flops())


def _of_output_layer(adapter: Lora | None, config: Any) -> float:
    """FLOPs of the output layer for one token.

    Its result, the gradient of its input, and the gradient of its weight if that is trained.
    """
    model: Any = skeleton(with_layers(config, 1), adapter, by_pairs=True)
    weight: torch.Tensor = model.get_output_embeddings().weight
    return 2.0 * weight.numel() * (3 if weight.requires_grad else 2)


def one_document(model: nn.Module, length: int) -> dict[str, torch.Tensor]:
    """Inputs of `model` for one document, on the current device."""
    forward = getattr(model, "get_base_model", lambda: model)().forward
    inputs = {
        "input_ids": torch.zeros(1, length, dtype=torch.long),
        "position_ids": torch.arange(length)[None],
        # Made from a mask of two dimensions, it would be looked at, and meta tensors hold no values.
        "attention_mask": torch.zeros(1, 1, length, length),
    }
    return {name: value for name, value in inputs.items() if name in inspect.signature(forward).parameters}
