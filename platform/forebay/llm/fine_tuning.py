"""Training loop of a fine-tuning.

If it does not fit, copy it and change it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.llm.context_parallel import ContextRanks
from forebay.llm.cost.meter import Meter, reset_peak_memory
from forebay.llm.evaluation import evaluate_tokens
from forebay.llm.loss import cross_entropy, of_targets, token_loss
from forebay.llm.quantization import FrozenWeights
from forebay.llm.recipe import Recipe
from forebay.llm.router_loss import router_losses
from forebay.llm.samples import HeldOutPrompt, PromptSampler
from forebay.llm.source.hub_model import hub_access
from forebay.llm.tokens import TARGETS, TOKENS
from forebay.training.state.metric import Evaluation
from forebay.training.worker.worker import Worker

_LOGGER = logging.getLogger(__name__)


def finetune(recipe: Recipe, worker: Worker, *, prompts: Sequence[HeldOutPrompt] = ()) -> None:
    """Train the model of `recipe` on token rows.

    For all remaining epochs.

    In a job: `fb.Job(train=partial(llm.finetune, recipe), ...)`.

    The loss is the mean over all targets of the global batch, whatever the number of workers and the rows of a pass.
    With `recipe.router_aux_loss_coef`, a target's loss is its cross entropy plus that share of its row's router loss,
    which is shown as `router_loss`. Evaluations have the held-out loss and exact match, if the job has held-out rows,
    and the model's answers to `prompts`. Rates are measured by `Meter`.

    Raises as `worker.setup`, and `InvalidOption` for a model that cannot be loaded.
    """
    _, model, optimizer = set_up(recipe, worker)
    meter = Meter.of(recipe, worker.device)
    context = ContextRanks(worker.world, recipe.context_parallel) if recipe.context_parallel > 1 else None
    evaluate = partial(evaluate_tokens, worker, model, chunk=recipe.loss_chunk, context=context)
    evaluate_held_out(recipe, worker, model, evaluate, prompts, meter.restart)
    seen: list[Tensor] = []

    def loss_of(part: Batch) -> Tensor:
        with recipe.autocast(worker.device):
            return _loss(recipe, model, part, seen, context)

    for batch in worker.loader():
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(worker.progress)
        rows = batch if context is None else context.gathered(batch, worker.all_reduce)
        loss = worker.backward(rows, loss_of, weigh_by=TARGETS, micro_rows=recipe.per_device_batch)
        grad_norm = worker.clip_grad_norm(recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        rates = meter.step(batch)
        worker.commit(loss=loss, grad_norm=grad_norm, **_router_loss(recipe, worker, seen), **rates)
        if batch.ends_epoch:
            meter.restart()


def evaluate_held_out(
    recipe: Recipe,
    worker: Worker,
    model: nn.Module,
    evaluate: Callable[[], Mapping[str, float]],
    prompts: Sequence[HeldOutPrompt],
    done: Callable[[], object] = lambda: None,
) -> None:
    """Let `worker` evaluate `model` on held-out rows and prompts.

    Does nothing if the job has none. Each time ends with `done()`.
    """
    if worker.held_out() is None:
        return
    sampler = PromptSampler(recipe, prompts, worker.device) if prompts else None

    def found() -> Evaluation:
        with recipe.evaluating(worker.device):
            made = Evaluation(metrics=evaluate(), samples=() if sampler is None else sampler.samples(model))
        done()
        return made

    worker.evaluate_with(found)


def _loss(recipe: Recipe, model: nn.Module, part: Batch, seen: list[Tensor], context: ContextRanks | None) -> Tensor:
    """Sum of the loss over the targets of a pass.

    Appends the router loss of its targets and their number to `seen`, float64 [2], if it has one.
    """
    if not recipe.router_aux_loss_coef:
        return token_loss(model, part, chunk=recipe.loss_chunk, context=context, kernel=recipe.loss_kernel)
    routers: list[Tensor] = []
    losses, _ = of_targets(model, part, cross_entropy, chunk=recipe.loss_chunk, routers=routers)
    targets = part[TARGETS]
    balance = (router_losses(model, part[TOKENS], routers) * targets).sum()
    if part.weight > 0:  # a row that a rank repeats is not counted
        seen.append(torch.stack([balance.detach().double(), targets.sum().double()]))
    total: Tensor = losses.sum() + recipe.router_aux_loss_coef * balance
    return total


def _router_loss(recipe: Recipe, worker: Worker, seen: list[Tensor]) -> dict[str, float]:
    """Mean router loss over the targets of the global batch, as a metric.

    Empties `seen`, which waits for the device.
    """
    if not recipe.router_aux_loss_coef:
        return {}
    own = torch.stack(seen).sum(dim=0).cpu().numpy() if seen else np.zeros(2)
    seen.clear()
    total, targets = worker.all_reduce(own)
    return {"router_loss": float(total / max(targets, 1))}


def set_up(recipe: Recipe, worker: Worker) -> tuple[nn.Module, nn.Module, Optimizer]:
    """Build and restore the model of `recipe`, and its optimizer.

    Returns the model, the same model as a train function calls it, and the optimizer.

    Reads nothing from the Hugging Face Hub, unless the model is there.
    """
    with hub_access(recipe.model.name):
        return _set_up(recipe, worker)


def _set_up(recipe: Recipe, worker: Worker) -> tuple[nn.Module, nn.Module, Optimizer]:
    reset_peak_memory(worker.device)
    # Before the model is restored: a checkpoint of another adapter is refused by its name.
    worker.track(model_origin=recipe.origin(worker.seed))
    built = recipe.build_model(worker.device)
    if worker.world.is_first:
        _LOGGER.info("%s", _summary(recipe, built, worker.device))
    build_optimizer = partial(recipe.optimizer, seed=worker.seed)
    if recipe.model.quantization is None:
        return built, *worker.setup(built, build_optimizer)
    worker.track(frozen_weights=(frozen := FrozenWeights(built)))
    model, optimizer = worker.setup(built, build_optimizer)
    frozen.watch(model)
    return built, model, optimizer


def _summary(recipe: Recipe, model: nn.Module, device: torch.device) -> str:
    """Type and gradient checkpointing, which depend on the device."""
    dtype = str(recipe.compute_type(device)).removeprefix("torch.")
    on = getattr(model, "is_gradient_checkpointing", False)
    return f"model {recipe.model.name}: {dtype} on {device.type}, gradient_checkpointing={str(on).lower()}"
