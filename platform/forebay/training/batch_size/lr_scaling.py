"""Learning rates that follow the global batch.

Schedulers do not see the scaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from forebay.errors import InvalidOption, whole_number
from forebay.training.batch_size.policy import RateScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Learning rate in proportion to the global batch.

    Twice the rows per step, twice the rate.

    For plain SGD while the batch is below the gradient's noise scale. After the batch has grown, the rate rises to its
    new value over `warmup_steps` steps, by the same amount in each (Goyal et al. 2017, "Accurate, Large Minibatch SGD",
    arXiv 1706.02677, sections 2.1 and 2.2). After the batch has shrunk, the rate falls at once. Raises `InvalidOption`
    for `warmup_steps` below 0.
    """

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "warmup_steps", whole_number("warmup_steps", self.warmup_steps))

    def factor(self, *, global_batch: int, base_batch: int, steps_since_change: int, previous_batch: int) -> float:
        """See `RateScaling`."""
        goal, before = global_batch / base_batch, previous_batch / base_batch
        return _ramp(before, goal, steps_since_change, self.warmup_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqrtScaling:
    """Learning rate by the square root of the global batch.

    Otherwise like `LinearScaling`.

    For Adam and similar optimizers, whose step is already divided by the gradient's size (Malladi et al. 2022, "On the
    SDEs and Scaling Rules for Adaptive Gradient Algorithms", arXiv 2205.10287).
    """

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "warmup_steps", whole_number("warmup_steps", self.warmup_steps))

    def factor(self, *, global_batch: int, base_batch: int, steps_since_change: int, previous_batch: int) -> float:
        """See `RateScaling`."""
        goal, before = math.sqrt(global_batch / base_batch), math.sqrt(previous_batch / base_batch)
        return _ramp(before, goal, steps_since_change, self.warmup_steps)


def _ramp(before: float, goal: float, steps: int, warmup_steps: int) -> float:
    if goal <= before or steps >= warmup_steps:
        return goal
    return before + (goal - before) * steps / warmup_steps


class LRScaling:
    """Multiplies an optimizer's learning rates within `step()` only.

    Outside of it, also in state dicts, every parameter group has the rate that the train function and its schedulers
    gave it. If a step raises, torch calls no hook, and the rates return at the next step, state dict or `set_batch`.
    Raises `InvalidOption` for an optimizer without learning rates.
    """

    def __init__(self, optimizer: Optimizer, rate: RateScaling, base_batch: int) -> None:
        if not all("lr" in group for group in optimizer.param_groups):
            raise InvalidOption(
                f"rate={rate} scales learning rates, but {type(optimizer).__name__} has a parameter group without one. "
                "Leave `rate` out of the job."
            )
        self._rate, self._base_batch = rate, base_batch
        self.factor = 1.0
        self._unscaled: list[tuple[dict[str, Any], Any]] = []
        optimizer.register_step_pre_hook(self._scale)
        optimizer.register_step_post_hook(lambda *_: self._reset())
        optimizer.register_state_dict_pre_hook(lambda _: self._reset())
        # Before the groups are replaced: the unscaled rates belong to the old ones.
        optimizer.register_load_state_dict_pre_hook(lambda *_: self._reset())

    def set_batch(self, *, global_batch: int, previous_batch: int, steps_since_change: int) -> None:
        """Set the rate factor of a step.

        The step has `global_batch` rows, and comes `steps_since_change` steps after `previous_batch` rows.
        """
        self._reset()
        self.factor = self._rate.factor(
            global_batch=global_batch,
            base_batch=self._base_batch,
            steps_since_change=steps_since_change,
            previous_batch=previous_batch,
        )

    def _scale(self, optimizer: Optimizer, *_: object) -> None:
        self._reset()
        for group in optimizer.param_groups:
            rate = group["lr"]
            if isinstance(rate, torch.Tensor):
                # In place: captured graphs read the rate from this tensor.
                self._unscaled.append((group, rate.clone()))
                rate.mul_(self.factor)
            else:
                self._unscaled.append((group, rate))
                group["lr"] = rate * self.factor

    def _reset(self) -> None:
        while self._unscaled:
            group, rate = self._unscaled.pop()
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
