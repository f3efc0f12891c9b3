"""Configurations of language models, by name or from a folder.

Reads no weights, and needs no network for the known ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import InvalidOption
from forebay.llm.models import TINY, Head, read_config, tiny_sizes
from forebay.llm.reward_head import HEAD
from forebay.llm.source.tokenizers import import_transformers

TINY_VOCABULARY = 2048


def _llama(width: int, inner: int, layers: int, heads: tuple[int, int], **others: Any) -> dict[str, Any]:
    sizes = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": 32_000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    return sizes | others


_LLAMA_3 = {"vocab_size": 128_256, "max_position_embeddings": 131_072}
_MISTRAL = {"model_type": "mistral", "max_position_embeddings": 32_768, "sliding_window": None}
KNOWN_MODELS: Mapping[str, Mapping[str, Any]] = {
    "Llama-2-7B": _llama(4096, 11_008, 32, (32, 32)),
    "Llama-2-13B": _llama(5120, 13_824, 40, (40, 40)),
    "Llama-2-70B": _llama(8192, 28_672, 80, (64, 8)),
    "Llama-3.2-1B": _llama(2048, 8192, 16, (32, 8), head_dim=64, **_LLAMA_3 | {"tie_word_embeddings": True}),
    "Llama-3-8B": _llama(4096, 14_336, 32, (32, 8), **_LLAMA_3 | {"max_position_embeddings": 8192}),
    "Llama-3.1-8B": _llama(4096, 14_336, 32, (32, 8), **_LLAMA_3),
    "Llama-3.1-70B": _llama(8192, 28_672, 80, (64, 8), **_LLAMA_3),
    "Mistral-7B": _llama(4096, 14_336, 32, (32, 8), **_MISTRAL),
    "Mixtral-8x7B": _llama(
        4096,
        14_336,
        32,
        (32, 8),
        **_MISTRAL | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "Qwen2.5-7B": _llama(
        3584, 18_944, 28, (28, 4), model_type="qwen2", vocab_size=152_064, max_position_embeddings=131_072
    ),
    "Qwen3-30B-A3B": _llama(
        2048,
        6144,
        48,
        (32, 4),
        model_type="qwen3_moe",
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        vocab_size=151_936,
        max_position_embeddings=40_960,
    ),
    "gpt-oss-20b": _llama(
        2880,
        2880,
        24,
        (64, 8),
        model_type="gpt_oss",
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
        vocab_size=201_088,
        max_position_embeddings=131_072,
    ),
}
"""Sizes from the published config.json of each model."""


def model_config(name: str, vocab_size: int = TINY_VOCABULARY, *, head: Head = "tokens", new_tokens: int = 0) -> Any:
    """Configuration of transformers for a model.

    `name` is "tiny" with `vocab_size` entries, a known model, or a model's folder. With `new_tokens`, a model of
    fewer than `vocab_size` entries gets the missing ones. `skeleton` gives the model of this configuration the `head`.

    Raises `InvalidOption` for a folder that `llm.check_model` refuses.
    """
    transformers = import_transformers()
    known = {each.lower(): sizes for each, sizes in KNOWN_MODELS.items()}.get(name.lower())
    if name == TINY:
        sizes: Mapping[str, Any] = {"model_type": "llama"} | tiny_sizes(vocab_size)
    elif known is not None:
        sizes = known
    else:
        sizes = _of_folder(name)
    try:
        config = transformers.AutoConfig.for_model(**sizes)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOption(
            f"the configuration of {name} is not one that the installed transformers knows ({error}).", path=name
        ) from error
    if new_tokens:
        config.vocab_size = max(config.vocab_size, vocab_size)
    if head == "reward":
        setattr(config, HEAD, head)
    return config


def _of_folder(name: str) -> Mapping[str, Any]:
    try:
        return read_config(name)
    except (FileNotFoundError, InvalidOption) as error:
        raise InvalidOption(
            f"{name!r} is neither the folder of a model ({error}) nor a known model. Those are "
            f"{', '.join(KNOWN_MODELS)}.",
            path=name,
        ) from error
