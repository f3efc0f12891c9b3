"""Held-out loss and exact match of a language model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from forebay.llm.context_parallel import ContextRanks
from forebay.llm.loss import LOSS_CHUNK, cross_entropy, of_targets
from forebay.llm.token_batch import IGNORED
from forebay.training.worker.eval_mode import evaluating
from forebay.training.worker.worker import Worker


def evaluate_tokens(
    worker: Worker, model: nn.Module, *, chunk: int = LOSS_CHUNK, context: ContextRanks | None = None
) -> dict[str, float]:
    """Evaluate a model on the job's held-out rows.

    Returns `validation_loss`, the mean over all targets, and `exact_match`. Empty without held-out rows.

    `exact_match` is the share of answers that the model gives exactly, with their end. An answer is a run of targets.
    Greedy decoding gives it exactly if and only if, behind each beginning of it, its next token has the largest logit.
    So one pass over the rows counts what decoding would give, packed or not.

    The results are the same on every rank and, up to rounding, in every world.
    """
    batches = worker.held_out()
    if batches is None:
        return {}
    sums = np.zeros(4)
    with torch.no_grad(), evaluating(model):
        for batch in batches:
            # Also for a dummy row: all ranks call a model equally often.
            rows = batch if context is None else context.gathered(batch, worker.all_reduce)
            found, labels = of_targets(model, rows, _loss_and_fault, chunk=chunk, context=context)
            if rows.weight > 0:
                is_fault = torch.zeros_like(labels, dtype=torch.bool).masked_scatter(labels != IGNORED, found[:, 1] > 0)
                sums[:2] += [float(found[:, 0].double().sum()), len(found)]
                if context is not None:
                    is_fault, labels = context.whole(is_fault), context.whole(labels)
                if context is None or context.index == 0:
                    sums[2:] += right_answers(is_fault, labels)
    loss, targets, right, answers = worker.all_reduce(sums)
    return {"validation_loss": float(loss / max(targets, 1)), "exact_match": float(right / max(answers, 1))}


def right_answers(is_fault: Tensor, labels: Tensor) -> tuple[int, int]:
    """Count the answers without a fault, and all answers.

    Args:
        is_fault: Bool [rows, n], whether the label does not have the largest logit.
        labels: Next tokens, int64 [rows, n], -100 without a target. An answer is a run of targets in a row.
    """
    is_target = labels != IGNORED
    begins = is_target.clone()
    begins[:, 1:] &= ~is_target[:, :-1]
    # The number of each answer, from 1 over all rows. Tokens that are not targets belong to none.
    number = begins.flatten().cumsum(0).view_as(labels) * is_target
    is_wrong = is_target & is_fault
    answers = int(begins.sum())
    faults = torch.zeros(answers + 1, device=labels.device).index_add_(0, number.flatten(), is_wrong.flatten().float())
    return int((faults[1:] == 0).sum()), answers


def _loss_and_fault(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy and fault of each target, [targets, 2].

    The fault is 1 where the label does not have the largest logit.
    """
    return torch.stack([cross_entropy(logits, labels), (logits.argmax(dim=-1) != labels).float()], dim=-1)
