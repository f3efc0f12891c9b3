"""Strategies of local processes and Ray Train."""

from __future__ import annotations

from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.fsdp2 import FullySharded
from forebay.training.strategies.strategy import Strategies
from forebay.training.strategies.zero.strategy import zero

TORCH_STRATEGIES: Strategies = {
    "ddp": TorchDataParallel,
    "fsdp2": FullySharded,
    "zero1": zero(1),
    "zero2": zero(2),
    "zero3": zero(3),
}
