"""Loss of a language model over its targets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.attention import FLASH, flash_documents, known_packing
from forebay.llm.context_parallel import ContextRanks
from forebay.llm.packing import TARGET, PackedRows
from forebay.llm.token_batch import IGNORED, TokenBatch, unpack
from forebay.llm.tokens import TOKENS

LOSS_CHUNK = 1024
"""Targets whose logits exist at a time."""
LossKernel = Literal["torch", "liger"]
"""Computation of the output layer with its loss: PyTorch's in chunks, or the fused one of Liger Kernel, for GPUs."""
LIGER = "liger"

OfLogits = Callable[[Tensor, Tensor], Tensor]
"""Function of logits [targets, entries] in float32 and labels [targets], which returns [targets, ...]."""

_CHECKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Output layers whose models were seen to return what the layer returns."""


def token_loss(
    model: Any,
    batch: Batch,
    *,
    chunk: int = LOSS_CHUNK,
    context: ContextRanks | None = None,
    kernel: LossKernel = "torch",
) -> Tensor:
    """Sum of the cross entropy over all targets.

    For `worker.backward(..., weigh_by="targets")`.

    `model` is a causal language model of the transformers library, or a wrapper of one. Its last layer computes the
    logits of targets only, of at most `chunk` targets at a time: all logits of a long row and a large
    vocabulary would take more memory than the rest. Those of several chunks are computed again in the backward pass,
    with the same result. 0 computes and keeps the logits of all positions.
    `kernel="liger"` chooses its chunks itself, and computes gradients with the loss, nothing twice.
    With `context`, it is the sum over this rank's tokens of rows that several ranks compute together.

    Raises `InvalidOption` for a model that changes the output of its last layer, unless `chunk` is 0.
    """
    of_logits = cross_entropy if kernel == "torch" else fused_cross_entropy
    losses, _ = of_targets(model, batch, of_logits, chunk=chunk, context=context)
    return losses.sum()


def of_targets(
    model: Any,
    batch: Batch,
    of_logits: OfLogits,
    *,
    chunk: int = LOSS_CHUNK,
    routers: list[Tensor] | None = None,
    context: ContextRanks | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply `of_logits` to the logits of all targets.

    Returns [targets, ...] row by row, and the labels of the next tokens, int64 [rows, n].

    Where a label is not -100, there is a target. The pass goes through `model` itself, as wrappers that shard or reduce
    need. Its output layer computes `of_logits` instead of the logits. `routers` is filled with the logits of a
    mixture's routers, layer by layer [tokens of all rows, experts]. With `context`, `batch` is what it has
    gathered, and results are of this rank's tokens. Raises as `token_loss`.
    """
    if not chunk:
        logits, labels = next_tokens(model, batch, routers=routers, context=context)
        is_target = labels != IGNORED
        return of_logits(logits[is_target].float(), labels[is_target]), labels
    causal, tokens, words = causal_model(model), unpack(batch[TOKENS]), batch.on_host(TOKENS)
    # Counted in main memory: a shape that the device decides would let the host wait for all that it computes.
    if context is None:
        labels = tokens.labels[:, 1:]
        count = int(((words[:, 1:] & TARGET) != 0).sum())
        # The last position of a row has no next token. Flash attention is given all rows as one, with the same
        # positions.
        following = functional.pad(labels, (0, 1), value=IGNORED)
    else:
        labels = following = context.own_tokens(tokens).labels
        count = int(context.own_targets(words).sum())
    targets = torch.nonzero_static((following != IGNORED).flatten(), size=count).flatten()
    its_labels = following.flatten().index_select(0, targets)
    head: nn.Module = causal.get_output_embeddings()
    with in_chunks(head, targets, its_labels, of_logits, chunk) as computed:
        found = _pass(model, causal, tokens, words, routers, context)
    if head not in _CHECKED and len(targets):
        # What is not a number equals itself: its cause is another one.
        if not torch.allclose(found.detach(), computed[0].detach(), rtol=0, atol=0, equal_nan=True):
            raise InvalidOption(
                f"{type(causal).__name__} changes the logits behind its last layer, so they cannot be computed in "
                f"chunks of {chunk} targets. Set loss_chunk=0."
            )
        _CHECKED.add(head)
    return found, labels


def next_tokens(
    model: Any, batch: Batch, *, routers: list[Tensor] | None = None, context: ContextRanks | None = None
) -> tuple[Tensor, Tensor]:
    """Compute logits [rows, seq_len - 1, entries] and their labels.

    Labels are int64 [rows, seq_len - 1]. With `context`, both are of all of this rank's tokens.
    """
    tokens, words = unpack(batch[TOKENS]), batch.on_host(TOKENS)
    logits = _pass(model, causal_model(model), tokens, words, routers, context)
    if context is not None:
        return logits, context.own_tokens(tokens).labels
    return logits.view(*tokens.labels.shape, -1)[:, :-1], tokens.labels[:, 1:]


def model_outputs(model: Any, packed: Tensor) -> Tensor:
    """Outputs of the last layer for packed tokens."""
    words = packed.cpu().numpy()
    return _logits(model, _inputs(causal_model(model), unpack(packed), words), words, None)


def _pass(
    model: Any,
    causal: Any,
    tokens: TokenBatch,
    words: PackedRows,
    routers: list[Tensor] | None,
    context: ContextRanks | None,
) -> Tensor:
    if context is None:
        return _logits(model, _inputs(causal, tokens, words), words, routers)
    with context.attending(words, tokens.position_ids):
        return _logits(model, _inputs(causal, context.own_tokens(tokens), words), words, routers)


def _logits(model: Any, inputs: dict[str, Any], words: PackedRows, routers: list[Tensor] | None) -> Tensor:
    with known_packing(words, inputs["position_ids"]):
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
        if of_logits is fused_cross_entropy:
            computed.append(_fused(head, needed, labels) if len(targets) else plain(needed).sum().reshape(1))
            return computed[-1]
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


def fused_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross entropy, [1]. Within `in_chunks`, Liger Kernel computes it without logits."""
    return cross_entropy(logits, labels).sum().reshape(1)


def check_fused(model: Any) -> None:
    """Check that the output layer of `model` can be fused with its loss. Raises `InvalidOption`."""
    if type(head := model.get_output_embeddings()) is not nn.Linear:
        raise InvalidOption(
            f"loss_kernel='liger' needs a plain linear output layer, and it is a {type(head).__name__}: leave it out "
            "of lora_targets and modules_to_save, or set loss_kernel='torch'.",
            option="loss_kernel",
        )


def _fused(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross entropy of targets, [1], by Liger Kernel (0.8)."""
    from liger_kernel.transformers import functional as liger  # noqa: PLC0415 - an extra, which imports Triton

    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    # As autocast does for a linear layer, once for all chunks. Their gradients add up in float32.
    values, weight, bias = (None if each is None else each.to(dtype) for each in (hidden, head.weight, head.bias))
    total: Tensor = liger.liger_fused_linear_cross_entropy(
        values, weight, labels, bias, reduction="sum", accum_dtype=torch.float32
    )
    return total.reshape(1)
