"""Step reports of rank 0, sent at most 10 times per second.

Also the cuts of the order into steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from forebay.events import MAX_STEPS, BatchesCut, EpochEnded, Evaluated, Event, Reported, Reporter
from forebay.training.monitors.readings import DeferredMetrics
from forebay.training.state.data_progress import PendingBatches
from forebay.training.state.known_reports import unknown
from forebay.training.state.metric import Metric, WeightedMean
from forebay.world import World


class StepCuts:
    """Step numbers of one world, on its first rank.

    A step that follows from the one before needs no record.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._expected: tuple[int, int, int, int] | None = None
        self._batches = 0

    def next_cut(self, step: int, drawn: PendingBatches, global_batch: int) -> BatchesCut | None:
        """Return the cut that begins with `step`.

        None if its batches follow from the steps before.
        """
        (epoch, position, _), batches = drawn.spans[0], len(drawn.spans)
        is_end = batches < self._batches and drawn.cursor.epoch > epoch
        is_expected = self._expected == (step, epoch, position, global_batch) and (batches == self._batches or is_end)
        self._expected = step + 1, drawn.cursor.epoch, drawn.cursor.position, global_batch
        if is_expected:
            return None
        self._batches = batches
        return BatchesCut(
            step=step,
            epoch=epoch,
            position=position,
            global_batch=global_batch,
            batches=batches,
            world_size=self._world_size,
        )


REPORT_EVERY_S = 0.1
"""Minimum seconds between sends. Reading a loss waits for the device."""


class StepReports:
    """Reporter of one rank. Only rank 0 sends.

    It reports steps that are due, the first `MAX_STEPS` of a run, and of others at most one every `REPORT_EVERY_S`.
    So the losses of a run do not depend on its speed, and are read from the device together.
    """

    def __init__(self, reporter: Reporter, world: World) -> None:
        self._reporter, self._is_first = reporter, world.is_first
        self._cuts = StepCuts(world.size)
        self._sent_at = float("-inf")
        self._unsent: list[tuple[tuple[str, ...], Mapping[str, float]]] = []
        self._metrics = DeferredMetrics()

    def emit(self, event: Event) -> None:
        """Report `event`, after the steps before it."""
        if self._is_first:
            self.send()
            self._reporter.report(event)

    def catch_up(self, evaluations: Sequence[Evaluated], ended: Sequence[EpochEnded]) -> None:
        """Report those that the driver does not have.

        It may have died, or this rank's predecessor, before it received them.
        """
        if self._is_first:
            for evaluation in unknown(evaluations, self._reporter.knows):
                self._reporter.report(evaluation)
            for epoch in unknown(ended, self._reporter.knows):
                self._reporter.report(epoch)

    def count(self, step: int, drawn: PendingBatches, global_batch: int) -> None:
        """Report the cut of batches into steps, if it changes."""
        if (cut := self._cuts.next_cut(step, drawn, global_batch)) is not None:
            self.emit(cut)

    def report(self, metrics: Mapping[str, Metric], *, due: bool, place: Mapping[str, float]) -> None:
        """Report `metrics` as a `Reported`. `place` holds its other fields."""
        if not self._is_first:
            return
        now = time.monotonic()
        sends = due or now - self._sent_at >= REPORT_EVERY_S
        if sends or place["step"] <= MAX_STEPS:
            self._unsent.append((tuple(metrics), place))
            for name, value in metrics.items():
                for part in (value.total, value.weight) if isinstance(value, WeightedMean) else (value, 1.0):
                    self._metrics.add(int(place["step"]), name, part)
        if sends:
            self._sent_at = now
            self.send()

    def send(self) -> None:
        """Send the steps that wait.

        Before a checkpoint: no later worker trains and reports them.
        """
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        numbers = (reading.value for reading in self._metrics.read_all())
        steps: list[Reported] = []
        for names, place in unsent:
            pairs = {name: (next(numbers), next(numbers)) for name in names}
            means = {name: total / weight for name, (total, weight) in pairs.items() if weight > 0}
            steps.append(Reported(metrics=means, **place))  # type: ignore[arg-type]
        self._reporter.report(*steps)
