"""References of preferences, each as a function of a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from forebay.data.loader.batch import Batch
from forebay.llm.adapters import without_adapter
from forebay.llm.preferences.answers import log_probabilities, stored_log_probabilities
from forebay.llm.preferences.losses import Preferences
from forebay.llm.recipe import Recipe
from forebay.llm.source.hub_model import hub_access
from forebay.training.state.rng import seed_everything
from forebay.training.strategies.fsdp2 import shard
from forebay.training.worker.eval_mode import evaluating
from forebay.training.worker.worker import Worker

Reference: TypeAlias = Callable[[Batch], Tensor]
"""Function that returns the reference's log-probabilities of a pass, float64 [pairs, 2]."""


def reference_of(
    preferences: Preferences, recipe: Recipe, worker: Worker, built: nn.Module, model: nn.Module
) -> Reference | None:
    """The reference of a training, or None for a loss without one.

    `built` is the model, and `model` the same one as a train function calls it.
    """
    if not preferences.has_reference:
        return None
    match preferences.reference:
        case "stored":
            return stored_log_probabilities
        case "copy":
            model = built = _frozen_copy(recipe, worker, model)

    def of_part(part: Batch) -> Tensor:
        with torch.no_grad(), evaluating(model), recipe.autocast(worker.device):
            if preferences.reference == "copy":
                return log_probabilities(model, part, chunk=recipe.loss_chunk).values
            with without_adapter(built):
                return log_probabilities(model, part, chunk=recipe.loss_chunk).values

    return of_part


def base_model(recipe: Recipe, seed: int, device: torch.device) -> nn.Module:
    """Frozen model that a run with `seed` begins with, on `device`, without an adapter.

    Seeds all generators: the tiny model is drawn as the workers draw it.
    """
    with hub_access(recipe.model.name):
        seed_everything(seed)
        base = recipe.build_base(device)
    frozen: nn.Module = base.requires_grad_(False).eval().to(device)
    return frozen


def _frozen_copy(recipe: Recipe, worker: Worker, model: nn.Module) -> nn.Module:
    """Second model that stays as it is.

    Split over ranks if `model` is, under fsdp2, and whole otherwise.
    """
    copy = base_model(recipe, worker.seed, worker.device)
    if any(isinstance(each, DTensor) for each in model.parameters()):
        shard(copy, init_device_mesh(worker.device.type, (worker.world.size,)))
    return copy
