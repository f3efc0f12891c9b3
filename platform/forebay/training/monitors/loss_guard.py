"""Default monitor: a non-finite or diverged loss ends the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from forebay.training.monitors.monitor import Action, Monitor, Verdict
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.monitors.readings import DeferredMetrics, Reading, bad_parameter, is_of_other_rows
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup

FIRST = 8
"""Losses at the begin of a run that later ones are compared with. The smallest counts: the others may be of a model
that has diverged in its first step.
"""
LIMIT = 1e6
"""Times of the smallest of the first losses, or of 1 if that is less."""
RECENT = 8
MOST_BEYOND = 3
"""Of the `RECENT` losses. More, if they are most of them, end the run: single rows can be that far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRange:
    """First losses of a run, and which recent ones exceed the limit.

    `first` are sizes. `beyond` are 1 or 0.
    """

    first: tuple[float, ...] = ()
    beyond: tuple[int, ...] = ()

    @property
    def limit(self) -> float:
        """Size above which a loss is beyond. Infinite before the first one."""
        return LIMIT * max(min(self.first), 1.0) if self.first else math.inf

    @property
    def has_diverged(self) -> bool:
        """Whether most of the recent losses are beyond the limit."""
        return sum(self.beyond) > MOST_BEYOND and 2 * sum(self.beyond) > len(self.beyond)

    def after(self, loss: float) -> LossRange:
        """Range with one more finite loss."""
        is_beyond = abs(loss) > self.limit
        first = (*self.first, abs(loss)) if len(self.first) < FIRST else self.first
        return replace(self, first=first, beyond=(*self.beyond, int(is_beyond))[-RECENT:])


def is_training_loss(name: str) -> bool:
    """Whether a metric is a loss of training rows, by its name.

    >>> [is_training_loss(name) for name in ("loss", "ctr_loss/a", "validation_loss", "auc")]
    [True, True, False, False]
    """
    return "loss" in name.lower() and not is_of_other_rows(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGuard:
    """Monitor that a job has by default (`Job.nan_guard`).

    It reads the committed losses of training rows, and before a checkpoint all parameters. A number that is not finite
    ends the run. So does a loss that stays beyond `LIMIT` times the first ones, and a single one is a warning.

    Args:
        finite: False leaves numbers that are not finite to a `NanGuard` of the job.
    """

    goes_back: ClassVar[bool] = False

    finite: bool = True

    def attach(self, setup: TrainSetup) -> LiveLossGuard:
        """Return a `LiveMonitor` for one rank."""
        return LiveLossGuard(self.finite, setup)


class LiveLossGuard:
    """Active `LossGuard` on one rank."""

    def __init__(self, finite: bool, setup: TrainSetup) -> None:
        self._finite, self._setup = finite, setup
        self._readings = DeferredMetrics()
        self._is_loss: dict[str, bool] = {}
        self._ranges: dict[str, LossRange] = {}
        self._warned = False

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        for name, value in metrics.items():
            if self._is_loss.setdefault(name, is_training_loss(name)):
                self._readings.add(step, name, value)

    def verdict(self) -> Verdict:
        readings = self._readings.read_all()
        return (self._not_finite(readings) if self._finite else None) or self._beyond(readings)

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {name: [list(each.first), list(each.beyond)] for name, each in self._ranges.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._readings.clear()
        self._ranges = {
            name: LossRange(first=tuple(first), beyond=tuple(beyond)) for name, (first, beyond) in state.items()
        }
        self._warned = False

    def _not_finite(self, readings: Sequence[Reading]) -> Verdict | None:
        bad = next((each for each in readings if not math.isfinite(each.value)), None)
        if bad is not None:
            reason = f"NanGuard: {bad.name} of step {bad.step} not finite ({bad.value})"
            return Verdict(action=Action.FAIL, reason=reason, step=bad.step, rows="own")
        where = bad_parameter(self._setup.model, self._setup.parts)
        return None if where is None else Verdict(action=Action.FAIL, reason=f"NanGuard: {where} not finite")

    def _beyond(self, readings: Sequence[Reading]) -> Verdict:
        found: Reading | None = None
        for each in readings:
            if math.isfinite(each.value):
                known = self._ranges.get(each.name, LossRange())
                found = found or (each if abs(each.value) > known.limit else None)
                self._ranges[each.name] = known.after(each.value)
        if found is None:
            self._warned = False
            return Verdict()
        loss = self._ranges[found.name]
        reason = (
            f"NanGuard: {found.name} of step {found.step} is {found.value:.6g}, more than {LIMIT:g} times the first "
            f"losses (limit {loss.limit:g})"
        )
        if any(each.has_diverged for each in self._ranges.values()):
            return Verdict(action=Action.FAIL, reason=reason, step=found.step, rows="own")
        action, self._warned = Action.GO_ON if self._warned else Action.WARN, True
        return Verdict(action=action, reason=reason, step=found.step, rows="own")


def guarded(monitors: Sequence[Monitor], nan_guard: bool) -> tuple[Monitor, ...]:
    """Return the monitors of a job, with the default one."""
    if not nan_guard:
        return tuple(monitors)
    return (*monitors, LossGuard(finite=not any(isinstance(each, NanGuard) for each in monitors)))
