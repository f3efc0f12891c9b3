"""Training loop of direct preference optimization (DPO).

If it does not fit, copy it and change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.adapters import without_adapter
from forebay.llm.fine_tuning import set_up
from forebay.llm.recipe import Recipe
from forebay.llm.token_batch import IGNORED, document_numbers
from forebay.llm.token_loss import LOSS_CHUNK, cross_entropy, of_targets
from forebay.llm.tokens import PAIRS, TOKENS
from forebay.training.worker.worker import Worker


def train_dpo(recipe: Recipe, worker: Worker, *, beta: float = 0.1) -> None:
    """Train the adapter of `recipe` on pairs of answers.

    For all remaining epochs.

    In a job: `fb.Job(train=partial(llm.train_dpo, recipe), ...)`, over data with `llm.pair_rows()`. The reference is
    the model without its adapter: no memory of its own, and one more pass forward.

    The loss is the mean over all pairs of the global batch. `accuracy` is the share of pairs whose preferred answer
    gained more than the other one, `margin` the mean of the difference. Each epoch ends with an evaluation of the
    held-out pairs.

    Args:
        recipe: Recipe with an adapter.
        worker: Worker of the job.
        beta: Weight of the reference: a larger one stays closer to it.

    Raises as `llm.finetune`, and `InvalidOption` for a recipe without an adapter, and for a `beta` not above 0.
    """
    _check(recipe, beta)
    built, model, optimizer = set_up(recipe, worker)

    def margins_of(part: Batch) -> Tensor:
        with recipe.autocast(worker.device):
            with torch.no_grad(), without_adapter(built):
                reference = pair_scores(model, part, chunk=recipe.loss_chunk)
            return preference_margins(pair_scores(model, part, chunk=recipe.loss_chunk), reference)

    seen: list[Tensor] = []

    def loss_of(part: Batch) -> Tensor:
        margins = margins_of(part)
        if part.weight > 0:  # a row that a rank repeats is not counted
            seen.append(margins.detach())
        return preference_loss(margins, beta)

    for batch in worker.loader():
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(worker.progress)
        loss = worker.backward(batch, loss_of, weigh_by=PAIRS, micro_rows=recipe.per_device_batch)
        grad_norm = worker.clip_grad_norm(recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        accuracy, margin = _over_ranks(worker, seen, beta)
        seen.clear()
        metrics = _held_out(worker, model, margins_of, beta) if batch.ends_epoch else {}
        worker.commit(loss=loss, grad_norm=grad_norm, accuracy=accuracy, margin=margin, **metrics)


def _over_ranks(worker: Worker, seen: Sequence[Tensor], beta: float) -> tuple[float, float]:
    """Accuracy and mean margin of all pairs of a global batch."""
    margins = beta * torch.cat([*seen]).double() if seen else torch.empty(0)
    right, total, pairs = worker.all_reduce(np.array([float((margins > 0).sum()), float(margins.sum()), len(margins)]))
    return float(right / max(pairs, 1)), float(total / max(pairs, 1))


def _check(recipe: Recipe, beta: float) -> None:
    if recipe.adapter is None:
        raise InvalidOption(
            "preferences are trained beside the model that the run starts from, which is the one without its adapter: "
            "there is no adapter. Give adapter=llm.Lora(...) (finetuning=lora or qlora)."
        )
    if not beta > 0:
        raise InvalidOption(f"beta={beta} cannot train. Give a number above 0, such as 0.1.", beta=beta)


def _held_out(worker: Worker, model: Any, margins_of: Any, beta: float) -> dict[str, float]:
    """Evaluate a model on the job's held-out pairs.

    Returns `validation_loss` and `validation_accuracy`. Empty without held-out pairs.
    """
    batches = worker.held_out()
    if batches is None:
        return {}
    sums = np.zeros(3)
    model.eval()
    with torch.no_grad():
        for batch in batches:
            margins = margins_of(batch)  # Also for a dummy row: all ranks call a model equally often.
            if batch.weight > 0:
                sums += [float(preference_loss(margins, beta)), int((margins > 0).sum()), len(margins)]
    model.train()
    loss, right, pairs = worker.all_reduce(sums)
    return {"validation_loss": float(loss / max(pairs, 1)), "validation_accuracy": float(right / max(pairs, 1))}


class PairScores(NamedTuple):
    """Log-probabilities of preferred and rejected answers, each float [pairs]."""

    chosen: Tensor
    rejected: Tensor


def pair_scores(model: Any, batch: Batch, *, chunk: int = LOSS_CHUNK) -> PairScores:
    """Log-probability of each answer, summed over its targets.

    In the order of rows and pairs.

    `chunk` is as in `token_loss`.
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
    """Difference of the log-ratios to the reference, float [pairs].

    Of the preferred answer, less the rejected one's.
    """
    return (policy.chosen - policy.rejected) - (reference.chosen - reference.rejected)


def preference_loss(margins: Tensor, beta: float) -> Tensor:
    """Sum of the losses of all pairs.

    For `worker.backward(..., weigh_by="pairs")`.
    """
    return -functional.logsigmoid(beta * margins).sum()
