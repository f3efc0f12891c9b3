"""Sizes of the bench's model, a Llama of 4 layers and width 256."""

from __future__ import annotations

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
