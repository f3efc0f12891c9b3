"""Implementations of attention, with one for packed documents.

A dense mask makes sdpa compute the scores of all pairs of tokens of a row. Here, scores exist within documents only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from forebay.errors import InvalidOption, MissingPackage

Attention = Literal["auto", "documents", "sdpa", "eager", "flash_attention_2", "flex_attention"]
"""Implementation of attention. "auto": on a GPU "flash_attention_2" where it is installed, and else "flex_attention",
which leaves out what packed documents do not see of each other; without a GPU "documents", which computes each document
by itself, and "sdpa" for models with an attention of their own.
"""
INSTALL_FLASH = "Install it: pip install flash-attn --no-build-isolation."
DOCUMENTS = "documents"
"""Name of this attention in transformers."""


def chosen_attention(attn: Attention, device: torch.device) -> str:
    """Name of the implementation for transformers, on `device`.

    Raises `InvalidOption` for flash attention that is not installed, and for what needs a GPU, without one.
    """
    has_gpu = device.type == "cuda"
    has_flash = importlib.util.find_spec("flash_attn") is not None
    if attn == "auto":
        return ("flash_attention_2" if has_flash else "flex_attention") if has_gpu else DOCUMENTS
    if attn == "flash_attention_2" and not has_flash:
        raise MissingPackage(
            f"attn={attn!r} needs the package flash_attn, which is missing. {INSTALL_FLASH}", attn=attn
        )
    if attn in {"flash_attention_2", "flex_attention"} and not has_gpu:
        why = "runs on GPUs only" if attn == "flash_attention_2" else "has no backward pass on a CPU"
        raise InvalidOption(
            f"attn={attn!r} {why}, and this worker trains on {device.type}. Set attn='auto', or give it a GPU.",
            attn=attn,
        )
    return attn


@dataclass(frozen=True, slots=True)
class DocumentLengths:
    """Lengths of the documents of packed rows, row by row.

    Passed to the attention instead of a mask.
    """

    lengths: list[int]


def can_attend_by_documents(model: Any) -> bool:
    """Whether attention of a model can be replaced by name."""
    # The flags of its class have no public names.
    return bool(model._supports_attention_backend and model._supports_sdpa)  # noqa: SLF001


def attend_by_documents(model: Any) -> None:
    """Switch `model`, which uses sdpa, to attention by documents.

    Raises `InvalidOption` for a model with its own attention.
    """
    import transformers  # noqa: PLC0415 - an extra, which takes seconds to import

    if not can_attend_by_documents(model):
        raise InvalidOption(
            f"attn={DOCUMENTS!r} does not work with {type(model).__name__}, which has an attention of its own. Set "
            "attn='auto'.",
            attn=DOCUMENTS,
        )
    transformers.AttentionInterface.register(DOCUMENTS, document_attention)
    transformers.AttentionMaskInterface.register(DOCUMENTS, document_mask)
    model.set_attn_implementation(DOCUMENTS)


def document_mask(**given: Any) -> DocumentLengths | Tensor | None:
    """Document lengths for packed rows, or the mask of sdpa.

    Lengths are returned where each token sees its document up to itself.

    `given` are the arguments of a mask function of transformers.
    """
    from transformers.masking_utils import sdpa_mask  # noqa: PLC0415 - an extra, which takes seconds to import

    is_training_pass = given["q_length"] == given["kv_length"] and given.get("attention_mask") is None
    # Skips are not allowed for packed rows, nor for masks that a model has changed by functions of its own.
    if is_training_pass and not given.get("allow_is_causal_skip") and not given.get("use_vmap"):
        starts = _starts(given["mask_function"], given["batch_size"], given["q_length"], given["device"])
        if starts is not None:
            begins = starts.flatten().nonzero().flatten()
            return DocumentLengths(begins.diff(append=begins.new_tensor([starts.numel()])).tolist())
    found: Tensor | None = sdpa_mask(**given)
    return found


def document_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention for transformers.

    Tensors are [rows, heads, tokens, width], the result [rows, tokens, heads, width].

    `attention_mask` is what `document_mask` returned.
    """
    if not isinstance(attention_mask, DocumentLengths):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415 - as above

        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    queries, keys, values = (
        torch.split(each.transpose(1, 2).flatten(0, 1), attention_mask.lengths) for each in (query, key, value)
    )
    attended = [
        functional.scaled_dot_product_attention(
            each.transpose(0, 1)[None],
            its_keys.transpose(0, 1)[None],
            its_values.transpose(0, 1)[None],
            dropout_p=options.get("dropout", 0.0),
            is_causal=True,
            scale=options.get("scaling"),
            enable_gqa=query.shape[1] != key.shape[1],
        )[0].transpose(0, 1)
        for each, its_keys, its_values in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(attended).view(query.shape[0], query.shape[2], *attended[0].shape[1:]), None


def _starts(sees: Callable[..., Tensor], rows: int, length: int, device: torch.device) -> Tensor | None:
    """Whether a document begins at each token, bool [rows, length].

    None for a mask of another kind.

    `sees(row, head, query, key)` is the mask. A window that is shorter than a document hides its first token.
    """
    row = torch.arange(rows, device=device)[:, None]
    head, index = torch.zeros_like(row), torch.arange(length, device=device).expand(rows, length)
    before, behind = (index - 1).clamp(min=0), (index + 1).clamp(max=length - 1)
    starts = ~sees(row, head, index, before) | (index == 0)
    first = torch.where(starts, index, 0).cummax(dim=1).values
    is_whole = sees(row, head, index, first).all() and not (sees(row, head, index, behind) & (behind != index)).any()
    return starts if is_whole else None
