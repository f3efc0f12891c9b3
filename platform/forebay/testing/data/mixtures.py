"""Configurations of small mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.llm.source.tokenizers import import_transformers

_SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.08,
}
_FINE = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_ROUTED = {**_FINE, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**_FINE, "num_experts": 8, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {**_FINE, "num_experts": 8, "head_dim": 16},
    "deepseek_v3": {**_ROUTED, **_LATENT, "num_hidden_layers": 3, "num_key_value_heads": 4, "n_shared_experts": 1},
    "glm4_moe": {**_ROUTED, "num_hidden_layers": 3, "head_dim": 16},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
"""Sizes by architecture. DeepSeek V3 and GLM-4.5 begin with a dense layer, and have shared experts."""


def mixture(kind: str, **options: Any) -> Any:
    """Configuration of transformers for a small mixture of experts."""
    return import_transformers().AutoConfig.for_model(kind, **{**_SIZES, **MIXTURES[kind], **options})
