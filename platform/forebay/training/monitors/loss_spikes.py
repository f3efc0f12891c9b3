"""Monitor of sudden increases of the loss.

They are the first sign of a bad batch or too long a step.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.errors import InvalidOption, whole_number
from forebay.training.monitors.monitor import Action, ActionWord, Verdict, action_of
from forebay.training.monitors.readings import DeferredMetrics
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpikes:
    """Monitor for losses far above the previous steps.

    A loss is a spike if it exceeds the median of the last `window` losses by more than `factor - 1` times that median.
    With `factor=3` it is a spike if it is three times as high. The first `window` losses are never spikes. `metric`
    names the loss among those given to `commit`. Each rank judges its own. `action`: as for `NanGuard`.

    PaLM's training skipped the batches at which the loss spiked (Chowdhery et al. 2022, section 5.1).

    Raises:
        InvalidOption: An unknown action, a factor not above 1, or a window below 3.
    """

    factor: float = 3.0
    window: int = 64
    action: ActionWord | Action = "skip"
    metric: str = "loss"

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", action_of(self.action))
        object.__setattr__(self, "window", whole_number("window", self.window, least=3))
        if not self.factor > 1:
            raise InvalidOption(f"factor={self.factor!r}: a spike is more than the median. Give more than 1, e.g. 3.")

    def attach(self, setup: TrainSetup) -> LiveLossSpikes:  # noqa: ARG002 - it watches no more than the loss
        """Return a `LiveMonitor` for one rank."""
        return LiveLossSpikes(self)


class LiveLossSpikes:
    """Active `LossSpikes` on one rank."""

    def __init__(self, spikes: LossSpikes) -> None:
        self._spikes = spikes
        self._action = action_of(spikes.action)
        self._unread = DeferredMetrics()
        self._losses: deque[float] = deque(maxlen=spikes.window)
        self._median = math.nan

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        if self._spikes.metric in metrics:
            self._unread.add(step, self._spikes.metric, metrics[self._spikes.metric])

    def verdict(self) -> Verdict:
        first: Verdict | None = None
        ordered = sorted(self._losses)
        for reading in self._unread.read_all():
            if not math.isfinite(reading.value):
                continue  # Not a question of size: left to `NanGuard`.
            if len(ordered) == self._spikes.window:
                self._median = ordered[len(ordered) // 2]
                margin = (self._spikes.factor - 1) * abs(self._median)
                if first is None and reading.value > self._median + margin:
                    first = self._spike(reading.step, reading.value)
                ordered.remove(self._losses[0])
            self._losses.append(reading.value)
            insort(ordered, reading.value)
        return first or Verdict()

    def metrics(self) -> Mapping[str, float]:
        return {} if math.isnan(self._median) else {f"loss_spikes/median_{self._spikes.metric}": self._median}

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._unread.clear()
        self._losses = deque(state["losses"], maxlen=self._spikes.window)
        self._median = math.nan

    def _spike(self, step: int, loss: float) -> Verdict:
        reason = (
            f"LossSpikes: {self._spikes.metric} of step {step} is {loss:.6g}, more than {self._spikes.factor:g} times "
            f"{self._median:.6g}, the median of the {self._spikes.window} steps before"
        )
        return Verdict(action=self._action, reason=reason, step=step, rows="own")
