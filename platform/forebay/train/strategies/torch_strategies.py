"""Strategies over torch.distributed, which local processes and Ray Train share."""

from __future__ import annotations

from forebay.train.strategies.ddp import TorchDataParallel
from forebay.train.strategies.fsdp2 import FullySharded
from forebay.train.strategies.strategy import Strategies

TORCH_STRATEGIES: Strategies = {"ddp": TorchDataParallel, "fsdp2": FullySharded}
