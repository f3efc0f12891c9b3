"""Positions of the rows of any trained step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from forebay.data.plan.order import Last, Order
from forebay.errors import InvalidOption, whole_number
from forebay.events import BatchesCut
from forebay.training.runs.timeline.timeline import Timeline

Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """Global batches of a step.

    Each is (epoch, first position, position after the last), and is shared by `world_size` workers.
    """

    step: int
    spans: tuple[Span, ...]
    world_size: int


class TrainedSteps:
    """Steps of a run by its timeline.

    Pure, without file access.

    Args:
        timeline: Cuts, verdicts and progress of all starts.
        order: Order of the run's rows.
        last: Policy of the last rows of an epoch.
        last_step: Newest step that is known to be trained.
    """

    def __init__(self, timeline: Timeline, order: Order, last: Last, *, last_step: int) -> None:
        self._order, self._last, self._last_step = order, last, last_step
        self._cuts = timeline.cuts
        self._skipped: dict[int, list[Span]] = {}
        for event in (event for start in timeline.starts for event in start.events if event.kind == "RolledBack"):
            spans = [(int(epoch), int(low), int(high)) for epoch, low, high in event.facts.get("skipped", ())]
            if spans:
                self._skipped.setdefault(int(event.facts["from_step"]), []).extend(spans)
            else:
                # A run that ends by it has not trained the step again, and its reason names it.
                self._last_step = max(self._last_step, int(event.facts["from_step"]))
        self._left_out = [span for spans in self._skipped.values() for span in spans]

    def find(self, step: int) -> TrainedStep:
        """Return the batches of the last training of `step`.

        Raises `InvalidOption` for a step that was not trained, or was not recorded.
        """
        step = whole_number("step", step, least=1)
        if step > self._last_step:
            raise InvalidOption(
                f"step={step} is beyond the run, which has trained {self._last_step} steps. Give 1 to "
                f"{self._last_step}.",
                step=step,
                last_step=self._last_step,
            )
        number = sum(cut.step <= step for cut in self._cuts) - 1
        first = self._cuts[0].step if self._cuts else self._last_step + 1
        if number < 0 or not self._cuts[number].batches:
            known = first if number < 0 else self._cuts[number + 1].step
            raise InvalidOption(
                f"The batches of step {step} are not recorded: the record begins with step {known}. It keeps the "
                "newest 32 starts of a run, and of each the newest 2,048 changes of the batches.",
                step=step,
            )
        cut = self._cuts[number]
        if number + 1 < len(self._cuts):
            self._require_connected(cut, self._cuts[number + 1])
        return TrainedStep(step=step, spans=self._batches_at(cut, step), world_size=cut.world_size)

    def find_skipped(self, step: int) -> TrainedStep:
        """Batches that a monitor left out at `step`.

        Raises `InvalidOption` if it left out none.
        """
        if step not in self._skipped:
            known = ", ".join(map(str, sorted(self._skipped))) or "none"
            raise InvalidOption(
                f"step={step}: no batch was skipped there. Steps with a skipped batch: {known}.", step=step
            )
        world_sizes = [cut.world_size for cut in self._cuts if cut.step <= step]
        return TrainedStep(step=step, spans=tuple(self._skipped[step]), world_size=(world_sizes or [1])[-1])

    def _batches_at(self, cut: BatchesCut, step: int) -> tuple[Span, ...]:
        """Return the batches of `step`, counted from its cut."""
        left, epoch, position = step - cut.step, cut.epoch, cut.position
        while left >= (steps := self._num_steps(cut, epoch, position)):
            left, epoch, position = left - steps, epoch + 1, 0
        first = left * cut.batches
        if not self._has_skipped(epoch):
            position = self._order.batch_start(first, cut.global_batch, position, last=self._last)
            first = 0
        batches = self._kept_batches(cut.global_batch, epoch, position)
        return tuple(islice(batches, first, first + cut.batches))

    def _num_steps(self, cut: BatchesCut, epoch: int, position: int) -> int:
        """Steps from a position to the end of its epoch."""
        if self._has_skipped(epoch):
            batches = sum(1 for _ in self._kept_batches(cut.global_batch, epoch, position))
        else:
            batches = self._order.num_batches(cut.global_batch, position, last=self._last)
        return -(-batches // cut.batches)

    def _has_skipped(self, epoch: int) -> bool:
        return any(at == epoch for at, _, _ in self._left_out)

    def _kept_batches(self, global_batch: int, epoch: int, position: int) -> Iterator[Span]:
        """Yield batches to the end of an epoch.

        Without those that were skipped.
        """
        skipped = [(low, high) for at, low, high in self._left_out if at == epoch]
        while size := self._order.batch_size(position, global_batch, last=self._last):
            start, stop = position, position + size
            position = stop
            if not any(start < high and low < stop for low, high in skipped):
                yield epoch, start, stop

    def _require_connected(self, cut: BatchesCut, later: BatchesCut) -> None:
        """Raise `InvalidOption` unless a cut leads to the next."""
        epoch, _, position = self._batches_at(cut, later.step - 1)[-1]
        while not (found := next(self._kept_batches(later.global_batch, epoch, position), None)):
            epoch, position = epoch + 1, 0
        if found[:2] != (later.epoch, later.position):
            raise InvalidOption(
                f"The batches of steps {cut.step} to {later.step - 1} are not all recorded: a driver was killed before "
                "it had saved how they changed. batch.rows() names rows during training.",
                first=cut.step,
                last=later.step - 1,
            )
