"""Specification of a worker's part of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.data.loader.data import Data
from forebay.training.batch_size.policy import BatchPolicy, RateScaling
from forebay.training.collectives.collective import Reduction
from forebay.training.monitors.monitor import Monitor
from forebay.training.state.evaluations import KeepBest
from forebay.training.strategies.choice import Offload, StrategyName, validate_choice
from forebay.training.strategies.strategy import StrategyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """The part of a job that a worker needs.

    `checkpoint_every` counts steps between checkpoints. The end of an epoch is saved too. `monitors` observe training.
    `eval_every` counts steps between evaluations, `max_steps` is the last step, `keep_best` judges evaluations.
    `strategy` names the way in which ranks train together, and `offload` what it keeps in main memory.
    `batch` decides on the rows per step, which begin with `data`'s. `rate` makes the learning rate follow them.
    `run` is the folder of the run, for texts.
    """

    data: Data
    held_out: Data | None = None
    epochs: int = 1
    seed: int = 0
    checkpoint_every: int = 100
    eval_every: int | None = None
    max_steps: int | None = None
    keep_best: KeepBest | None = None
    monitors: tuple[Monitor, ...] = ()
    batch: BatchPolicy | None = None
    rate: RateScaling | None = None
    reduction: Reduction = "mean"
    strategy: StrategyName = "ddp"
    offload: Offload = "none"
    run: str = ""

    def options_of(self, strategy: str, rows_done: Callable[[], int] = lambda: 0) -> StrategyOptions:
        """Return what `strategy` needs.

        Raises `InvalidOption` if it does not fit the rest of the job.
        """
        readers = [each for each in (*self.monitors, self.batch) if getattr(each, "needs_whole", False)]
        names = [type(each).__name__ for each in readers]
        validate_choice(strategy, self.offload, self.reduction, whole=names)
        return StrategyOptions(
            reduction=self.reduction, plan=self.data.plan, seed=self.seed, offload=self.offload, rows_done=rows_done
        )
