"""Training loop of preferences.

If it does not fit, copy it and change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.fine_tuning import evaluate_held_out, set_up
from forebay.llm.preferences.answers import log_probabilities, rewards
from forebay.llm.preferences.losses import AnswerScores, Preferences
from forebay.llm.preferences.objective import LabelObjective, Objective, PairObjective
from forebay.llm.preferences.reference import reference_of
from forebay.llm.recipe import Recipe
from forebay.llm.samples import HeldOutPrompt
from forebay.llm.tokens import PAIRS
from forebay.training.worker.eval_mode import evaluating
from forebay.training.worker.worker import Worker


def prefer(
    recipe: Recipe,
    worker: Worker,
    *,
    preferences: Preferences | None = None,
    prompts: Sequence[HeldOutPrompt] = (),
) -> None:
    """Train the model of `recipe` on preferences.

    For all remaining epochs.

    In a job: `fb.Job(train=partial(llm.prefer, recipe, preferences=llm.Preferences(loss="ipo")), ...)`, over data with
    `llm.pair_rows()`.

    The loss is the mean over all pairs of the global batch. `accuracy` is the share of pairs whose preferred answer
    gained more than the other one, `margin` the mean of the difference. Of answers with labels, `accuracy` is the share
    on their side of `kl`, and `margin` the difference of the means. Evaluations are of the held-out
    pairs.

    Args:
        recipe: Recipe. A reward model has `ModelSpec(head="reward")`.
        worker: Worker of the job.
        preferences: Loss and reference. None: DPO.
        prompts: Held-out prompts that the model answers at each evaluation.

    Raises as `llm.finetune`, and `InvalidOption` for a recipe that does not suit the loss.
    """
    preferences = check_recipe(recipe, preferences or Preferences())
    built, model, optimizer = set_up(recipe, worker)

    def scores_of(part: Batch) -> AnswerScores:
        with recipe.autocast(worker.device), nullcontext() if torch.is_grad_enabled() else evaluating(model):
            if preferences.loss == "reward":
                return rewards(model, part)
            return log_probabilities(model, part, chunk=recipe.loss_chunk)

    reference = reference_of(preferences, recipe, worker, built, model)
    objective: Objective = PairObjective(preferences, worker, scores_of, reference)
    if preferences.loss == "kto":
        assert reference is not None, "the loss has one"
        objective = LabelObjective(preferences, worker, scores_of, reference, micro_rows=recipe.per_device_batch)
    evaluate_held_out(recipe, worker, model, partial(_held_out, worker, objective), prompts)
    for batch in worker.loader():
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(worker.progress)
        objective.begin(batch)
        loss = worker.backward(batch, objective.loss_of, weigh_by=PAIRS, micro_rows=recipe.per_device_batch)
        grad_norm = worker.clip_grad_norm(recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss, grad_norm=grad_norm, **objective.end())


def check_recipe(recipe: Recipe, preferences: Preferences) -> Preferences:
    """The preferences with their kind of reference.

    Raises `InvalidOption` for a recipe that does not suit the loss.
    """
    found = preferences.resolved(has_adapter=recipe.adapter is not None)
    if (recipe.model.head == "reward") != (found.loss == "reward"):
        raise InvalidOption(
            f"loss={found.loss!r} trains a model with the head {'reward' if found.loss == 'reward' else 'tokens'!r}, "
            f"and the recipe's has {recipe.model.head!r}. Set ModelSpec(head=...) to it.",
            option="loss",
        )
    return found


def _held_out(worker: Worker, objective: Objective) -> dict[str, float]:
    """Evaluate a model on the job's held-out pairs.

    Returns `validation_loss` and `validation_accuracy`. Empty without held-out pairs.
    """
    batches = worker.held_out()
    if batches is None:
        return {}
    with torch.no_grad():
        return objective.evaluate(batches)
