from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSetup:
    """Objects that monitors and policies observe on one rank.

    Attributes:
        model: The model on this rank's device, before it is wrapped.
        optimizer: Its optimizer.
        device: Device of model and batches.
        world_size: Number of ranks.
    """

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    world_size: int
