"""Collects the events of a run into its result. What was trained twice counts once."""

from __future__ import annotations

from dataclasses import replace

from forebay.events import EpochEnded, Event, Failed, Finished, Reported
from forebay.training.runs.result import Result

MAX_STEPS = 4096


class RunHistory:
    """Keeps the epochs, and at most `MAX_STEPS` of the reported steps, of the attempts that shaped the model.

    When workers are lost, training goes back to the newest checkpoint and reports steps again. The later report
    replaces the earlier ones from that step on.
    """

    def __init__(self, start: Result) -> None:
        self._start = start
        self._epochs = list(start.epochs)
        self._steps = list(start.steps)
        self._failures = start.failures
        self._stopped: str | None = None

    def record(self, event: Event) -> None:
        """Record one event."""
        match event:
            case Reported():
                self._record_step(event)
            case EpochEnded():
                self._epochs = [*(epoch for epoch in self._epochs if epoch.epoch < event.epoch), event]
            case Failed(will_retry=True):
                self._failures += 1
            case Finished():
                self._stopped = event.stopped

    def knows(self, event: EpochEnded) -> bool:
        """Whether an equal report of an epoch was recorded before."""
        # Compares texts: a loss that is NaN does not equal itself.
        return repr(event) in map(repr, self._epochs)

    def _record_step(self, event: Reported) -> None:
        while self._steps and self._steps[-1].step >= event.step:
            earlier = self._steps.pop()
            if earlier.step == event.step:
                # A step may be reported twice: its loss at the commit, and values that report() adds after it.
                event = replace(event, metrics={**earlier.metrics, **event.metrics})
        self._steps.append(event)
        if len(self._steps) > MAX_STEPS:
            # Drop every second step but keep the newest: so the shape of the curve stays, for runs of any length.
            self._steps = [*self._steps[:-1:2], self._steps[-1]]

    @property
    def result(self) -> Result:
        """Result of all events recorded so far."""
        return replace(
            self._start,
            epochs=tuple(self._epochs),
            steps=tuple(self._steps),
            failures=self._failures,
            stopped=self._stopped,
        )
