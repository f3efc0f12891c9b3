"""A job's monitors at work on one rank, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import Diverged
from forebay.train.metric import Metric
from forebay.train.monitors.monitor import LiveMonitor, Monitor, Verdict
from forebay.train.setup import TrainSetup

MOST_ROLL_BACKS = 3
"""To one commit; after that the run is given up."""


class MonitorSet:
    """Begins with `begin`; until then, and without monitors, there is nothing to see."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = monitors
        self._live: dict[str, LiveMonitor] = {}
        self._fresh: dict[str, dict[str, Any]] = {}
        self._gone_back: tuple[int, int] = (-1, 0)

    @property
    def is_on(self) -> bool:
        """Whether anything is watched."""
        return bool(self._live)

    def begin(self, training: TrainSetup) -> None:
        """Put the monitors to work. They are told apart by class, and by order within a class."""
        self._live = {}
        for monitor in self._monitors:
            kind = type(monitor).__name__
            count = sum(name.partition("-")[0] == kind for name in self._live)
            self._live[f"{kind}-{count}"] = monitor.begin(training)
        self._fresh = self.state()

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        for monitor in self._live.values():
            monitor.step(step, metrics)

    def verdict(self) -> Verdict:
        """The gravest of this rank."""
        return gravest([monitor.verdict() for monitor in self._live.values()])

    def metrics(self) -> dict[str, float]:
        """What all of them measured since the last call."""
        return {name: value for monitor in self._live.values() for name, value in monitor.metrics().items()}

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: monitor.state_dict() for name, monitor in self._live.items()}

    def put_back(self, state: Mapping[str, dict[str, Any]]) -> None:
        """As `state` says; a monitor that it does not know begins anew."""
        for name, monitor in self._live.items():
            monitor.load_state_dict(state.get(name, self._fresh[name]))

    def count_roll_back(self, verdict: Verdict, *, to_step: int) -> None:
        """Raises `Diverged` when all that can be done from the commit of `to_step` was done."""
        at, times = self._gone_back
        self._gone_back = (to_step, times + 1 if at == to_step else 1)
        if self._gone_back[1] > MOST_ROLL_BACKS:
            raise Diverged(
                f"training from the commit of step {to_step} was rejected {MOST_ROLL_BACKS + 1} times, the last time "
                f"at step {verdict.step}: {verdict.reason}. Look at the data of that step and at the learning rate; "
                "the run goes on from that commit if it is run again.",
                step=verdict.step,
                to_step=to_step,
                reason=verdict.reason,
            )


def gravest(verdicts: Sequence[Verdict]) -> Verdict:
    """The one to obey: of the gravest kind, and among these of the earliest step; the first of equals."""
    return min(
        verdicts,
        key=lambda verdict: (-verdict.action, float("inf") if verdict.step is None else verdict.step),
        default=Verdict(),
    )
