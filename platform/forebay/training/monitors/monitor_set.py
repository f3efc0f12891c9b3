"""Set of all monitors of a job on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from forebay.errors import Diverged
from forebay.training.monitors.monitor import LiveMonitor, Monitor, Verdict
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup

MOST_ROLL_BACKS = 3
"""Roll-backs to one checkpoint before the run ends with an error."""


class MonitorSet:
    """Monitors of one rank, active from `attach` on."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = monitors
        self._live: dict[str, LiveMonitor] = {}
        self._is_attached = False
        self._fresh: dict[str, dict[str, Any]] = {}
        self._last_roll_back: tuple[int, int] = (-1, 0)

    @property
    def may_go_back(self) -> bool:
        """Whether an active monitor may ask to go back to a checkpoint."""
        return self._is_attached and any(getattr(monitor, "goes_back", True) for monitor in self._monitors)

    def attach(self, setup: TrainSetup) -> None:
        """Start the monitors.

        Each is named after its class and its position among monitors of the same class.
        """
        self._live, self._is_attached = {}, True
        for monitor in self._monitors:
            kind = type(monitor).__name__
            count = sum(name.partition("-")[0] == kind for name in self._live)
            self._live[f"{kind}-{count}"] = monitor.attach(setup)
        self._fresh = self.state()

    def attach_without_model(self, device: torch.device, world_size: int) -> None:
        """Start the monitors of a loop that has called no `Worker.setup`.

        They see what it commits. Does nothing if they have started.
        """
        if not self._is_attached:
            nothing = torch.optim.SGD([torch.zeros(0)])
            self.attach(TrainSetup(model=nn.Module(), optimizer=nothing, device=device, world_size=world_size))

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        for monitor in self._live.values():
            monitor.step(step, metrics)

    def verdict(self) -> Verdict:
        """Return the gravest verdict of this rank."""
        return gravest([monitor.verdict() for monitor in self._live.values()])

    def metrics(self) -> dict[str, float]:
        """Return the measurements of all monitors since the last call."""
        return {name: value for monitor in self._live.values() for name, value in monitor.metrics().items()}

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: monitor.state_dict() for name, monitor in self._live.items()}

    def restore(self, state: Mapping[str, dict[str, Any]]) -> None:
        """Load `state`.

        A monitor that is missing there starts from its initial state.
        """
        for name, monitor in self._live.items():
            monitor.load_state_dict(state.get(name, self._fresh[name]))

    def count_roll_back(self, verdict: Verdict, *, to_step: int) -> None:
        """Count a roll-back to `to_step`.

        Raises `Diverged` after more than `MOST_ROLL_BACKS` to the same step.
        """
        at, times = self._last_roll_back
        self._last_roll_back = (to_step, times + 1 if at == to_step else 1)
        if self._last_roll_back[1] > MOST_ROLL_BACKS:
            raise Diverged(
                f"training from the checkpoint of step {to_step} was rejected {MOST_ROLL_BACKS + 1} times, the last "
                f"time at step {verdict.step}: {verdict.reason}. Look at the data of that step and at the learning "
                "rate; the same name, run again, continues from that checkpoint.",
                step=verdict.step,
                to_step=to_step,
                reason=verdict.reason,
            )

    def failure(self, verdict: Verdict) -> Diverged:
        """Error of a run that a monitor ends."""
        return Diverged(
            f"{verdict.reason}. Nothing since the newest checkpoint is saved: the same name, run again, continues from "
            "there. Look at these rows and at the learning rate. fb.Job(nan_guard=False) trains on.",
            step=verdict.step,
            reason=verdict.reason,
        )


def gravest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict to follow.

    The gravest action, then the earliest step, then the one with rows at fault.
    """
    return min(
        verdicts,
        key=lambda each: (-each.action, float("inf") if each.step is None else each.step, each.rows != "own"),
        default=Verdict(),
    )
