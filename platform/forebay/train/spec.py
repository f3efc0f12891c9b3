"""Specification of a worker's part of a job."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.loader.data import Data
from forebay.train.batch_size.policy import BatchPolicy, RateScaling
from forebay.train.collectives.collective import Reduction
from forebay.train.monitors.monitor import Monitor
from forebay.train.strategies.strategy import Offload, StrategyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """Part of a job that reaches a worker: its data, its length, and the interval of checkpoints.

    `checkpoint_every` counts steps between checkpoints. The end of an epoch is saved too. `monitors` observe training.
    `strategy` names the way in which ranks train together, and `offload` what it keeps in main memory.
    `batch` decides on the rows per step, which begin with those of `data`. `rate` makes the learning rate follow them.
    """

    data: Data
    held_out: Data | None = None
    epochs: int = 1
    seed: int = 0
    checkpoint_every: int = 100
    monitors: tuple[Monitor, ...] = ()
    batch: BatchPolicy | None = None
    rate: RateScaling | None = None
    reduction: Reduction = "mean"
    strategy: str = "ddp"
    offload: Offload = "none"

    @property
    def strategy_options(self) -> StrategyOptions:
        """Facts that a strategy needs."""
        return StrategyOptions(reduction=self.reduction, plan=self.data.plan, seed=self.seed, offload=self.offload)
