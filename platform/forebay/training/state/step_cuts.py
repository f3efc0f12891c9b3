"""Detects where the order is cut into steps in another way."""

from __future__ import annotations

from forebay.events import BatchesCut
from forebay.training.state.data_progress import PendingBatches


class StepCuts:
    """Steps of one world as its first rank sees them. A step that follows from the one before needs no record."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._expected: tuple[int, int, int, int] | None = None
        self._batches = 0

    def next_cut(self, step: int, drawn: PendingBatches, global_batch: int) -> BatchesCut | None:
        """Return the cut that begins with `step`, or None if its batches are those that follow."""
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
