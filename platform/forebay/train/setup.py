from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSetup:
    """Objects that monitors and policies observe on one rank: the model before it is wrapped, and its optimizer."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    world_size: int
