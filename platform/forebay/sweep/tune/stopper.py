"""Early end of a sweep.

All trials save a checkpoint first.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.tune.experiment import Trial
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.runtime.formatting import time_text

STOP_TIMEOUT_S = 600.0
"""Time limit for trials to save a checkpoint and end. Tune ends them after it."""


class SweepStopped(Exception):
    """All trials have saved a checkpoint and ended.

    For Tune none of them is done, so all can resume.
    """


class SweepStopper(tune.Callback):  # type: ignore[misc]
    """Tune callback that ends the sweep early.

    Several times a second it checks whether the sweep must end, stops its trials and raises `SweepStopped`.

    `deadline_s` counts from `began`, in monotonic seconds. `reason` is the reason of the end; `unfinished` names the
    trials that were not over. `interrupted_by` is the signal that ends it for now.
    """

    def __init__(self, deadline_s: float | None, began: float) -> None:
        self.reason: str | None = None
        self.unfinished: list[str] = []
        self.interrupted_by: signal.Signals | None = None
        self._deadline_s, self._began = deadline_s, began
        self._stop_flag: ActorHandle | None = None
        self._external_reason: Callable[[], str | None] = lambda: None

    def connect(self, stop_flag: ActorHandle, external_reason: Callable[[], str | None]) -> None:
        """Set the stop flag, and the source of stop requests.

        Trials poll the flag. `external_reason` returns the reason of a requested stop.
        """
        self._stop_flag, self._external_reason = stop_flag, external_reason

    def interrupt(self, by: signal.Signals) -> None:
        """End the sweep for now."""
        self.interrupted_by = self.interrupted_by or by

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        self.reason = self._reason()
        if self.reason is None:
            return
        self.unfinished = [trial.trial_id for trial in trials if not trial.is_finished()]
        self._stop_trials(trials, self.reason)
        raise SweepStopped

    def _reason(self) -> str | None:
        if self.interrupted_by is not None:
            return "interrupted"
        if self._deadline_s is not None and time.monotonic() - self._began >= self._deadline_s:
            return f"the deadline of {time_text(self._deadline_s)} was reached"
        return self._external_reason()

    def _stop_trials(self, trials: list[Trial], reason: str) -> None:
        """Stop all trials and wait for their end.

        The flag ends the current step, `stop` later ones.
        """
        assert self._stop_flag is not None
        ray.get(self._stop_flag.set.remote(reason))
        actors = [trial.temporary_state.ray_actor for trial in trials if trial.status == Trial.RUNNING]
        stopping = [actor.stop.remote() for actor in actors if actor is not None]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_TIMEOUT_S)


class StopFlag:
    """Stop flag that trials poll during an epoch.

    An actor on the node of the sweep.
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    def set(self, reason: str) -> None:
        """Make all trials save a checkpoint and end."""
        self._reason = self._reason or reason

    def reason(self) -> str | None:
        """Return the reason of the stop.

        None while trials may continue.
        """
        return self._reason


@contextmanager
def start_stop_flag() -> Iterator[ActorHandle]:
    """Stop flag for the duration of the block."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    stop_flag = ray.remote(StopFlag).options(num_cpus=0, scheduling_strategy=here).remote()
    try:
        yield stop_flag
    finally:
        ray.kill(stop_flag)
