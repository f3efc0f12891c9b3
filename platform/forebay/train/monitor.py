"""What watches training from within: monitors see every step of a rank, and judge before anything is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from forebay.train.account import Metric


class Action(IntEnum):
    """What follows from a verdict; of several verdicts the gravest counts."""

    GO_ON = 0
    WARN = 1
    SKIP = 2
    """Go back to the newest commit, and train on without the batch that did it."""
    ROLL_BACK = 3
    """Go back to the newest commit, and train the same batches again."""
    STOP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a monitor makes of the steps since the last saved commit.

    `step` is the first bad step (as `Worker.step` counts it after its commit), None where no single step is to blame.
    """

    action: Action = Action.GO_ON
    reason: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What there is to watch on one rank: the model before it is wrapped for many ranks, and its optimizer."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    world_size: int


class LiveMonitor(Protocol):
    """A monitor at work on one rank, made anew whenever the train function is entered.

    Laws: `step` never waits for the device; `verdict` may. Ranks may judge differently: the worker makes it one.
    """

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """See one step, after `optimizer.step()`; `metrics` as the train function gave them to `commit`."""

    def verdict(self) -> Verdict:
        """Judge the steps since the last call. Asked at every saved commit, before it is saved."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """What it measured since the last call, for the record; names begin with the monitor's."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What must outlive the process; tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, also after going back to a commit; forget everything seen since."""


class Monitor(Protocol):
    """What a job holds: frozen, picklable."""

    def begin(self, training: Training) -> LiveMonitor:
        """Called by `Worker.setup`, on every rank."""
        ...
