"""Loss of a language model over the targets of token rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from forebay.errors import InvalidOption
from forebay.llm.token_batch import IGNORED, TokenBatch, unpack
from forebay.llm.tokens import TOKENS
from forebay.loader.batch import Batch

LOSS_CHUNK = 1024
"""Positions whose logits exist at a time."""
FLASH = "flash_attention_2"

OfLogits = Callable[[Tensor, Tensor], Tensor]
"""Function of logits [positions, entries] in float32 and labels [positions], which returns [positions, ...]."""

_CHECKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Output layers whose models were seen to return what the layer returns."""


def token_loss(model: Any, batch: Batch, *, chunk: int = LOSS_CHUNK) -> Tensor:
    """Sum of the cross entropy over all targets of a batch, for `worker.backward(..., weigh_by="targets")`.

    `model` is a causal language model of the transformers library, or a wrapper of one. The logits of at most `chunk`
    positions exist at a time: those of a long row and a large vocabulary would take more memory than the rest. They are
    computed again in the backward pass, with the same result. 0 keeps the logits of all positions.

    Raises `InvalidOption` for a model that changes the output of its last layer, unless `chunk` is 0.
    """
    losses, _ = of_positions(model, batch, _cross_entropy, chunk=chunk)
    return losses.sum()


def of_positions(model: Any, batch: Batch, of_logits: OfLogits, *, chunk: int = LOSS_CHUNK) -> tuple[Tensor, Tensor]:
    """`of_logits` of every position but the last of each row, [rows, n, ...], and the labels of the next tokens.

    The pass goes through `model` itself, as wrappers that shard or reduce need. Its output layer computes `of_logits`
    in the place of the logits. Raises as `token_loss`.
    """
    if not chunk:
        logits, labels = next_tokens(model, batch)
        whole = of_logits(logits.flatten(0, 1).float(), labels.flatten())
        return whole.view(*labels.shape, *whole.shape[1:]), labels
    causal, tokens = causal_model(model), unpack(batch[TOKENS])
    inputs = _inputs(causal, tokens)
    # As the model's input: rows are one row for flash attention.
    labels = tokens.labels.view_as(inputs["input_ids"])[:, 1:]
    head: nn.Module = causal.get_output_embeddings()
    with _in_chunks(head, labels, of_logits, chunk) as computed:
        found: Tensor = model(**inputs).logits
    if head not in _CHECKED:
        if not torch.equal(found.detach(), computed[0].detach()):
            raise InvalidOption(
                f"{type(causal).__name__} changes the logits behind its last layer, so they cannot be computed in "
                f"chunks of {chunk} positions. Set loss_chunk=0."
            )
        _CHECKED.add(head)
    return found, labels


def next_tokens(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [rows, seq_len - 1, entries], and the labels of the same positions, int64 [rows, seq_len - 1]."""
    tokens = unpack(batch[TOKENS])
    logits: Tensor = model(**_inputs(causal_model(model), tokens)).logits
    return logits.view(*tokens.labels.shape, -1)[:, :-1], tokens.labels[:, 1:]


def causal_model(model: Any) -> Any:
    """Model of transformers that `model` is, or wraps."""
    # A DeepSpeed engine lends itself the model's methods, and has a configuration of its own.
    return next(each for each in model.modules() if hasattr(getattr(each, "config", None), "_attn_implementation"))


def _inputs(causal: Any, tokens: TokenBatch) -> dict[str, Any]:
    ids, positions = tokens.input_ids, tokens.position_ids
    if causal.config._attn_implementation == FLASH:  # noqa: SLF001 - transformers has no public name for it
        # Flash attention keeps documents apart in one row only. Every row begins with a document.
        ids, positions = ids.reshape(1, -1), positions.reshape(1, -1)
    return {"input_ids": ids, "position_ids": positions, "use_cache": False}


@contextmanager
def _in_chunks(head: Any, labels: Tensor, of_logits: OfLogits, chunk: int) -> Iterator[list[Tensor]]:
    """Let the layer `head` return `of_logits` of its output, chunk by chunk. Yields the list of what it returned."""
    own, plain, computed = head.__dict__.get("forward"), head.forward, list[Tensor]()

    def of_chunk(hidden: Tensor, chunk_labels: Tensor) -> Tensor:
        return of_logits(plain(hidden).float(), chunk_labels)

    def forward(hidden: Tensor) -> Tensor:
        pieces = zip(
            torch.split(hidden[:, :-1].flatten(0, 1), chunk), torch.split(labels.flatten(), chunk), strict=True
        )
        if labels.numel() <= chunk or not torch.is_grad_enabled():
            parts = [of_chunk(*each) for each in pieces]
        else:
            parts = [checkpoint(of_chunk, *each, use_reentrant=False) for each in pieces]
        joined = torch.cat(parts)
        computed.append(joined.view(*labels.shape, *joined.shape[1:]))
        return computed[-1]

    head.forward = forward
    try:
        yield computed
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
