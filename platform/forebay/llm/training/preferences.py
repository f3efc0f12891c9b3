"""Loss of direct preference optimization (DPO, Rafailov et al. 2023, arXiv 2305.18290) over pairs in token rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from forebay.data.loader.batch import Batch
from forebay.llm.token_batch import IGNORED, document_numbers
from forebay.llm.tokens import PAIRS, TOKENS
from forebay.llm.training.token_loss import LOSS_CHUNK, cross_entropy, of_targets


class PairScores(NamedTuple):
    """Log-probabilities, float [pairs], of all preferred answers of some rows, and of the other ones."""

    chosen: Tensor
    rejected: Tensor


def pair_scores(model: Any, batch: Batch, *, chunk: int = LOSS_CHUNK) -> PairScores:
    """Sums of the log-probabilities of the targets of each answer, in the order of rows and pairs.

    `chunk` is that of `token_loss`.
    """
    losses, labels = of_targets(model, batch, cross_entropy, chunk=chunk)
    pairs = batch[PAIRS]
    most = int(pairs.max())
    each = losses.new_zeros(labels.shape).masked_scatter(labels != IGNORED, -losses)
    # The rest of a row belongs to no answer, and adds 0 to the last one.
    numbers = document_numbers(batch[TOKENS])[:, 1:].clamp(max=max(2 * most - 1, 0))
    sums = each.new_zeros(len(labels), max(2 * most, 1)).scatter_add(1, numbers, each)
    is_pair = torch.arange(most, device=pairs.device) < pairs[:, None]
    return PairScores(sums[:, 0 : 2 * most : 2][is_pair], sums[:, 1 : 2 * most : 2][is_pair])


def preference_margins(policy: PairScores, reference: PairScores) -> Tensor:
    """Log-ratio to the reference of each preferred answer, less that of the other one, float [pairs]."""
    return (policy.chosen - policy.rejected) - (reference.chosen - reference.rejected)


def preference_loss(margins: Tensor, beta: float) -> Tensor:
    """Sum of the losses of all pairs, for `worker.backward(..., weigh_by="pairs")`."""
    return -functional.logsigmoid(beta * margins).sum()
