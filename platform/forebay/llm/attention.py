"""Implementations of attention, with one for packed documents.

A dense mask makes sdpa compute the scores of all pairs of tokens of a row. Here, scores exist within documents only.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from forebay.errors import InvalidOption, MissingPackage
from forebay.llm.packing import START, PackedRows

Attention = Literal["auto", "documents", "sdpa", "eager", "flash_attention_2", "flex_attention"]
"""Implementation of attention. "auto": on a GPU "flash_attention_2" where it is installed, and else "flex_attention",
which leaves out what packed documents do not see of each other; without a GPU "documents", which computes each document
by itself, and "sdpa" for models with an attention of their own. "documents" is refused on a GPU: its kernels are too
small there.
"""
FLASH, FLEX = "flash_attention_2", "flex_attention"
INSTALL_FLASH = "Install it: pip install flash-attn --no-build-isolation."
DOCUMENTS = "documents"
"""Name of this attention in transformers."""
_IS_PACKED: ContextVar[bool | None] = ContextVar("is_packed", default=None)
"""Whether the rows of the pass of this thread hold several documents. None: it is not known."""
_POSITIONS: ContextVar[Tensor | None] = ContextVar("positions", default=None)
"""Positions of whole rows, where a pass has parts of them."""
_OWN_POSITIONS: ContextVar[Tensor | None] = ContextVar("own_positions", default=None)
"""Positions of the tokens of a pass, for masks of models that do not pass them on."""


def chosen_attention(attn: Attention, device: torch.device, *, is_compiled: bool = False) -> str:
    """Name of the implementation for transformers, on `device`.

    Compiled layers cannot go document by document.

    Raises `InvalidOption` for flash attention that is not installed, and for what needs a GPU, without one.
    """
    has_gpu = device.type == "cuda"
    if attn == DOCUMENTS and has_gpu:
        raise InvalidOption(
            f"attn={attn!r} computes each document by a kernel of its own, which is for CPUs: on an H200, 17 steps of "
            "a model of a billion parameters did not end in 50 s that take 13 with others. Set attn='auto'.",
            attn=attn,
        )
    has_flash = importlib.util.find_spec("flash_attn") is not None
    if attn == "auto":
        without_gpu = "sdpa" if is_compiled else DOCUMENTS
        return (FLASH if has_flash else FLEX) if has_gpu else without_gpu
    if attn == DOCUMENTS and is_compiled:
        raise InvalidOption(
            f"attn={attn!r} calls a kernel for each document, which would be compiled again for each batch. Set "
            "attn='auto', or compile=False.",
            attn=attn,
        )
    if attn == FLASH and not has_flash:
        raise MissingPackage(
            f"attn={attn!r} needs the package flash_attn, which is missing. {INSTALL_FLASH}", attn=attn
        )
    if attn in {FLASH, FLEX} and not has_gpu:
        why = "runs on GPUs only" if attn == FLASH else "has no backward pass on a CPU"
        raise InvalidOption(
            f"attn={attn!r} {why}, and this worker trains on {device.type}. Set attn='auto', or give it a GPU.",
            attn=attn,
        )
    return attn


@contextmanager
def known_packing(words: PackedRows, positions: Tensor | None = None) -> Iterator[None]:
    """Let transformers know the documents of rows.

    `words` are packed tokens in main memory, `positions` what the model gets as `position_ids`.

    It asks the device otherwise, in each pass, and waits for all that the device computes. Some models make their mask
    without positions, such as gpt-oss: their documents would see each other.
    """
    _tell_transformers()
    packed, own = _IS_PACKED.set(bool((words[:, 1:] & START).any())), _OWN_POSITIONS.set(positions)
    try:
        yield
    finally:
        _IS_PACKED.reset(packed)
        _OWN_POSITIONS.reset(own)


@contextmanager
def packing_of_rows(positions: Tensor) -> Iterator[None]:
    """Let transformers take documents from other rows than those of a pass.

    `positions` are those of tokens in their documents, [rows, tokens].
    """
    _tell_transformers()
    before = _POSITIONS.set(positions)
    try:
        yield
    finally:
        _POSITIONS.reset(before)


@cache
def _tell_transformers() -> None:
    """Replace the functions of transformers that find documents.

    Versions 5.16 to 5.19 have no option for it.
    """
    from transformers import masking_utils  # noqa: PLC0415 - an extra, which takes seconds to import

    ask, prepare = masking_utils.find_packed_sequence_indices, masking_utils._preprocess_mask_arguments  # noqa: SLF001
    arguments = inspect.signature(prepare)

    def find(position_ids: Tensor) -> Tensor | None:
        is_packed, whole = _IS_PACKED.get(), _POSITIONS.get()
        position_ids = position_ids if whole is None else whole
        if is_packed is None:
            asked: Tensor | None = ask(position_ids)
            return asked
        return _document_indices(position_ids) if is_packed else None

    def prepared(*given: Any, **named: Any) -> Any:
        found = arguments.bind(*given, **named)
        if found.arguments.get("position_ids") is None:
            found.arguments["position_ids"] = _OWN_POSITIONS.get()
        return prepare(*found.args, **found.kwargs)

    masking_utils.find_packed_sequence_indices = find
    masking_utils._preprocess_mask_arguments = prepared  # noqa: SLF001 - as above


def _document_indices(position_ids: Tensor) -> Tensor:
    """Number of each token's document, as transformers counts it."""
    first = position_ids[:, :1] - 1
    return (torch.diff(position_ids, prepend=first, dim=-1) != 1).cumsum(-1)


def flash_documents(words: PackedRows, device: torch.device) -> dict[str, Any]:
    """Ends of documents for flash attention, over all rows.

    `words` are packed tokens in main memory. Without them, each layer asks the device for the longest document.
    """
    begins = np.flatnonzero(words & START)
    ends = np.append(begins, words.size).astype(np.int32)
    cumulated = torch.from_numpy(ends).to(device, non_blocking=True)
    longest = int(np.diff(ends).max())
    return {
        "cu_seq_lens_q": cumulated,
        "cu_seq_lens_k": cumulated,
        "max_length_q": longest,
        "max_length_k": longest,
    }


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
