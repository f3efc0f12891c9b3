"""Choice of the implementation of attention, by what is installed and the device."""

from __future__ import annotations

import importlib.util
from typing import Literal

from forebay.errors import InvalidOption, MissingPackage
from forebay.llm.training.document_attention import DOCUMENTS

Attention = Literal["auto", "documents", "sdpa", "eager", "flash_attention_2", "flex_attention"]
"""Implementation of attention. "auto": on a GPU "flash_attention_2" where it is installed, and else "flex_attention",
which leaves out what packed documents do not see of each other; without a GPU "documents", which computes each document
by itself, and "sdpa" for models with an attention of their own.
"""
INSTALL_FLASH = "Install it: pip install flash-attn --no-build-isolation."


def chosen_attention(attn: Attention, *, has_gpu: bool) -> str:
    """Name of the implementation for transformers.

    Raises `InvalidOption` for flash attention that is not installed, and for what needs a GPU, without one.
    """
    has_flash = importlib.util.find_spec("flash_attn") is not None
    if attn == "auto":
        return ("flash_attention_2" if has_flash else "flex_attention") if has_gpu else DOCUMENTS
    if attn == "flash_attention_2" and not has_flash:
        raise MissingPackage(
            f"attn={attn!r} needs the package flash_attn, which is missing. {INSTALL_FLASH}", attn=attn
        )
    if attn in {"flash_attention_2", "flex_attention"} and not has_gpu:
        why = "runs on GPUs only" if attn == "flash_attention_2" else "has no backward pass on a CPU"
        raise InvalidOption(f"attn={attn!r} {why}, and this process has none. Set attn='auto'.", attn=attn)
    return attn
