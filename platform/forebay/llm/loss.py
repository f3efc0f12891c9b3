"""Loss of a language model over its targets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.attention import FLASH, flash_documents, known_packing
from forebay.llm.packing import TARGET, PackedRows
from forebay.llm.token_batch import IGNORED, TokenBatch, unpack
from forebay.llm.tokens import TOKENS

LOSS_CHUNK = 1024
"""Targets whose logits exist at a time."""

OfLogits = Callable[[Tensor, Tensor], Tensor]
"""Function of logits [targets, entries] in float32 and labels [targets], which returns [targets, ...]."""

_CHECKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Output layers whose models were seen to return what the layer returns."""


def token_loss(model: Any, batch: Batch, *, chunk: int = LOSS_CHUNK) -> Tensor:
    """Sum of the cross entropy over all targets.

    For `worker.backward(..., weigh_by="targets")`.

    `model` is a causal language model of the transformers library, or a wrapper of one. Its last layer computes the
    logits of targets only, of at most `chunk` targets at a time: all logits of a long row and a large
    vocabulary would take more memory than the rest. Those of several chunks are computed again in the backward pass,
    with the same result. 0 computes and keeps the logits of all positions.

    Raises `InvalidOption` for a model that changes the output of its last layer, unless `chunk` is 0.
    """
    losses, _ = of_targets(model, batch, cross_entropy, chunk=chunk)
    return losses.sum()


def of_targets(
    model: Any, batch: Batch, of_logits: OfLogits, *, chunk: int = LOSS_CHUNK, routers: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Apply `of_logits` to the logits of all targets.

    Returns [targets, ...] row by row, and the labels of the next tokens, int64 [rows, n].

    Where a label is not -100, there is a target. The pass goes through `model` itself, as wrappers that shard or reduce
    need. Its output layer computes `of_logits` instead of the logits. `routers` is filled with the logits of a
    mixture's routers, layer by layer [tokens of all rows, experts]. Raises as `token_loss`.
    """
    if not chunk:
        logits, labels = next_tokens(model, batch, routers=routers)
        is_target = labels != IGNORED
        return of_logits(logits[is_target].float(), labels[is_target]), labels
    causal, tokens, words = causal_model(model), unpack(batch[TOKENS]), batch.on_host(TOKENS)
    labels = tokens.labels[:, 1:]
    # Counted in main memory: a shape that the device decides would let the host wait for all that it computes.
    count = int(((words[:, 1:] & TARGET) != 0).sum())
    # The last position of a row has no next token. Flash attention is given all rows as one, with the same positions.
    targets = torch.nonzero_static(functional.pad(labels != IGNORED, (0, 1)).flatten(), size=count).flatten()
    its_labels = functional.pad(labels, (0, 1)).flatten().index_select(0, targets)
    head: nn.Module = causal.get_output_embeddings()
    with known_packing(words), in_chunks(head, targets, its_labels, of_logits, chunk) as computed:
        found = _logits(model, _inputs(causal, tokens, words), routers)
    if head not in _CHECKED and len(targets):
        if not torch.equal(found.detach(), computed[0].detach()):
            raise InvalidOption(
                f"{type(causal).__name__} changes the logits behind its last layer, so they cannot be computed in "
                f"chunks of {chunk} targets. Set loss_chunk=0."
            )
        _CHECKED.add(head)
    return found, labels


def next_tokens(model: Any, batch: Batch, *, routers: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Compute logits [rows, seq_len - 1, entries] and their labels.

    Labels are int64 [rows, seq_len - 1].
    """
    tokens, words = unpack(batch[TOKENS]), batch.on_host(TOKENS)
    with known_packing(words):
        logits = _logits(model, _inputs(causal_model(model), tokens, words), routers)
    return logits.view(*tokens.labels.shape, -1)[:, :-1], tokens.labels[:, 1:]


def model_inputs(model: Any, packed: Tensor) -> dict[str, Any]:
    """Arguments of a forward pass over packed tokens."""
    return _inputs(causal_model(model), unpack(packed), packed.cpu().numpy())


def _logits(model: Any, inputs: dict[str, Any], routers: list[Tensor] | None) -> Tensor:
    found = model(**inputs) if routers is None else model(**inputs, output_router_logits=True)
    if routers is not None:
        routers.extend(found.router_logits)
    logits: Tensor = found.logits
    return logits


def causal_model(model: Any) -> Any:
    """Model of transformers that `model` is, or wraps."""
    # A DeepSpeed engine lends itself the model's methods, and has a configuration of its own.
    return next(each for each in model.modules() if hasattr(getattr(each, "config", None), "_attn_implementation"))


def _inputs(causal: Any, tokens: TokenBatch, words: PackedRows) -> dict[str, Any]:
    ids, positions = tokens.input_ids, tokens.position_ids
    if causal.config._attn_implementation != FLASH:  # noqa: SLF001 - transformers has no public name for it
        return {"input_ids": ids, "position_ids": positions, "use_cache": False}
    # Flash attention keeps documents apart in one row only. Every row begins with a document.
    inputs = {"input_ids": ids.reshape(1, -1), "position_ids": positions.reshape(1, -1), "use_cache": False}
    return inputs | flash_documents(words, ids.device)


@contextmanager
def in_chunks(head: Any, targets: Tensor, labels: Tensor, of_logits: OfLogits, chunk: int) -> Iterator[list[Tensor]]:
    """Let the output layer return `of_logits`, chunk by chunk.

    For `targets`, positions over all rows.

    Yields the list of what it returned.
    """
    own, plain, computed = head.__dict__.get("forward"), head.forward, list[Tensor]()

    def of_chunk(hidden: Tensor, chunk_labels: Tensor) -> Tensor:
        return of_logits(plain(hidden).float(), chunk_labels)

    def forward(hidden: Tensor) -> Tensor:
        needed = hidden.flatten(0, 1).index_select(0, targets)
        # Also without targets there is one piece: all ranks use the weights of the layer equally often.
        pieces = zip(torch.split(needed, chunk), torch.split(labels, chunk), strict=True)
        with _one_copy():
            if len(targets) <= chunk or not torch.is_grad_enabled():
                parts = [of_chunk(*each) for each in pieces]
            else:
                parts = [checkpoint(of_chunk, *each, use_reentrant=False) for each in pieces]
        computed.append(torch.cat(parts))
        return computed[-1]

    head.forward = forward
    try:
        yield computed
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own


@contextmanager
def _one_copy() -> Iterator[None]:
    """Let autocast keep its copy of the output layer for all chunks."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each target."""
    return functional.cross_entropy(logits, labels, reduction="none")
