"""The end of a sweep before its trials are done: all of them commit and end first, whatever the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.tune.experiment import Trial
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.formatting import time_text

PARTING_S = 600.0
"""How long trials may take to commit and end, until Tune ends them."""


class SweepStopped(Exception):
    """The trials have committed and ended, and to Tune none of them is done: all can go on when the sweep does."""


class SweepStopper(tune.Callback):  # type: ignore[misc]
    """Ends the sweep: checks several times a second, then stops its trials and raises `SweepStopped`.

    `deadline_s` counts from `began`, which is monotonic seconds. `reason` says why the sweep has ended, and
    `unfinished` names the trials that were not over then.
    """

    def __init__(self, deadline_s: float | None, began: float) -> None:
        self.reason: str | None = None
        self.unfinished: list[str] = []
        self.is_interrupted = False
        self._deadline_s, self._began = deadline_s, began
        self._bell: ActorHandle | None = None
        self._asked: Callable[[], str | None] = lambda: None

    def listen(self, bell: ActorHandle, asked: Callable[[], str | None]) -> None:
        """`bell` reaches the trials; `asked` says why others want the sweep to end."""
        self._bell, self._asked = bell, asked

    def interrupt(self) -> None:
        """End the sweep for now."""
        self.is_interrupted = True

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        self.reason = self._reason()
        if self.reason is None:
            return
        self.unfinished = [trial.trial_id for trial in trials if not trial.is_finished()]
        self._part(trials, self.reason)
        raise SweepStopped

    def _reason(self) -> str | None:
        if self.is_interrupted:
            return "interrupted"
        if self._deadline_s is not None and time.monotonic() - self._began >= self._deadline_s:
            return f"the deadline of {time_text(self._deadline_s)} was reached"
        return self._asked()

    def _part(self, trials: list[Trial], reason: str) -> None:
        """Returns once every trial has committed and ended: the bell ends the step it is in, `stop` what follows."""
        assert self._bell is not None
        ray.get(self._bell.ring.remote(reason))
        actors = [trial.temporary_state.ray_actor for trial in trials if trial.status == Trial.RUNNING]
        gone = [actor.stop.remote() for actor in actors if actor is not None]
        if gone:
            ray.wait(gone, num_returns=len(gone), timeout=PARTING_S)


class StopFlag:
    """An actor beside the sweep; its trials listen now and then."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def ring(self, reason: str) -> None:
        """Have all trials commit and end."""
        self._reason = self._reason or reason

    def heard(self) -> str | None:
        """Why trials shall end, or None as long as they shall not."""
        return self._reason


@contextmanager
def hung_up_bell() -> Iterator[ActorHandle]:
    """A bell for the length of the block."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    bell = ray.remote(StopFlag).options(num_cpus=0, scheduling_strategy=here).remote()
    try:
        yield bell
    finally:
        ray.kill(bell)
