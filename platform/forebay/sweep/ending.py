"""The end of a sweep before its trials are done: all of them commit and end first, whatever the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.tune.experiment import Trial

from forebay.driver.wording import time_text

PARTING_S = 600.0
"""How long trials may take to commit and end, until Tune ends them."""


class Interrupted(Exception):
    """Ctrl-C: the trials have committed and ended, and none of them is done."""


class Over(tune.Stopper):  # type: ignore[misc]
    """Tells Tune that the sweep has ended."""

    def __init__(self) -> None:
        self.is_over = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002 - Tune's signature
        return False

    def stop_all(self) -> bool:
        return self.is_over


class Ending(tune.Callback):  # type: ignore[misc]
    """Looks several times a second whether the sweep is to end, and if so has its trials part.

    `reason` says why it has, and `unfinished` names the trials that were not over then.
    """

    def __init__(self, deadline_s: float | None) -> None:
        self.stopper = Over()
        self.reason: str | None = None
        self.unfinished: list[str] = []
        self._deadline_s = deadline_s
        self._ends_at: float | None = None
        self._is_interrupted = False
        self._bell: ActorHandle | None = None
        self._asked: Callable[[], str | None] = lambda: None

    def listen(self, bell: ActorHandle, asked: Callable[[], str | None]) -> None:
        """`bell` reaches the trials; `asked` says why others want the sweep to end."""
        self._bell, self._asked = bell, asked

    def interrupt(self) -> None:
        """End the sweep for now."""
        self._is_interrupted = True

    def setup(self, **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        if self._deadline_s is not None:
            self._ends_at = time.monotonic() + self._deadline_s

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        if self.reason is not None or (reason := self._reason()) is None:
            return
        self.reason = reason
        self.unfinished = [trial.trial_id for trial in trials if not trial.is_finished()]
        self._part(trials, reason)
        if self._is_interrupted:
            raise Interrupted
        self.stopper.is_over = True

    def _reason(self) -> str | None:
        if self._is_interrupted:
            return "interrupted"
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            assert self._deadline_s is not None
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
