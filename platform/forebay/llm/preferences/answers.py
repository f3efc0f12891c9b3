"""Scores of the answers in packed rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from forebay.data.loader.batch import Batch
from forebay.llm.loss import LOSS_CHUNK, cross_entropy, model_outputs, of_targets
from forebay.llm.packing import DESIRED, START
from forebay.llm.preferences.losses import AnswerScores
from forebay.llm.token_batch import IGNORED, document_numbers
from forebay.llm.tokens import PAIRS, REFERENCE, TOKENS


def log_probabilities(model: Any, batch: Batch, *, chunk: int = LOSS_CHUNK) -> AnswerScores:
    """Log-probability of each text of a pair, summed over its targets.

    In the order of rows and pairs. `chunk` is as in `token_loss`.
    """
    losses, labels = of_targets(model, batch, cross_entropy, chunk=chunk)
    is_target = labels != IGNORED
    # Summed in float64: a log-ratio is the small difference of two large sums.
    each = losses.new_zeros(labels.shape, dtype=torch.float64).masked_scatter(is_target, -losses.double())
    numbers = document_numbers(batch[TOKENS])[:, 1:]
    return AnswerScores(_of_texts(batch, each, numbers), _of_texts(batch, is_target.double(), numbers))


def rewards(model: Any, batch: Batch) -> AnswerScores:
    """Reward of each text of a pair: the output at its last token.

    `model` has a reward head (`ModelSpec(head="reward")`).
    """
    packed: Tensor = batch[TOKENS]
    outputs = model_outputs(model, packed).view(packed.shape)
    # The token before the next text. The rest of a row is one more text.
    is_last = functional.pad((packed & START) != 0, (0, 1), value=True)[:, 1:]
    numbers = document_numbers(packed)
    values = _of_texts(batch, outputs.double() * is_last, numbers)
    return AnswerScores(values, torch.ones_like(values))


def stored_log_probabilities(batch: Batch) -> Tensor:
    """Log-probabilities under the reference, float64 [pairs, 2].

    Of rows that were prepared with them.
    """
    most = batch[REFERENCE].shape[1] // 2
    return _pairs(batch, batch[REFERENCE].view(-1, most, 2))


def desired(batch: Batch) -> Tensor:
    """Whether the first text of each pair is desired, bool [pairs]."""
    packed: Tensor = batch[TOKENS]
    each = ((packed & DESIRED) != 0).double()
    return _of_texts(batch, each, document_numbers(packed))[:, 0] > 0


def row_sums(scores: AnswerScores, pairs: Tensor) -> list[list[float]]:
    """Values of each row's texts, in order."""
    parts = torch.split(scores.values, [*map(int, pairs)])
    return [part.flatten().tolist() for part in parts]


def _of_texts(batch: Batch, each: Tensor, numbers: Tensor) -> Tensor:
    """Sums of token values over the texts of pairs, [pairs, 2]."""
    most = max(int(batch[PAIRS].max()), 1)
    # The rest of a row belongs to no text: it is summed up beside them.
    sums = each.new_zeros(len(each), 2 * most + 1).scatter_add(1, numbers.clamp(max=2 * most), each)
    return _pairs(batch, sums[:, : 2 * most].view(-1, most, 2))


def _pairs(batch: Batch, of_rows: Tensor) -> Tensor:
    """Pairs among [rows, most, 2], as [pairs, 2]."""
    pairs: Tensor = batch[PAIRS]
    is_pair = torch.arange(of_rows.shape[1], device=pairs.device) < pairs[:, None]
    return of_rows[is_pair]
