"""Loss of a language model over the targets of token rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from forebay.llm.token_batch import IGNORED, unpack
from forebay.llm.tokens import TOKENS
from forebay.loader.batch import Batch


def token_loss(model: Any, batch: Batch) -> Tensor:
    """Sum of the cross entropy over all targets of a batch, for `worker.backward(..., weigh_by="targets")`.

    `model` is a causal language model of the transformers library, or a wrapper of one.
    """
    logits, labels = next_tokens(model, batch)
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def next_tokens(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [rows, seq_len - 1, entries], and the labels of the same positions, int64 [rows, seq_len - 1]."""
    tokens = unpack(batch[TOKENS])
    logits: Tensor = model(input_ids=tokens.input_ids, position_ids=tokens.position_ids, use_cache=False).logits
    return logits[:, :-1], tokens.labels[:, 1:]
