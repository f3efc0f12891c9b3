"""Where a run stands in its data: what is committed, what was drawn since, and what is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from forebay.errors import BadJob
from forebay.loader.batch import Batch
from forebay.loader.data import Data
from forebay.loader.loader import Loader
from forebay.plan.cursor import Cursor

Span = tuple[int, int, int]
"""Rows of one epoch: (epoch, first position, position after the last)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatches:
    """Batches handed out since the last commit: where the last one ended, their rows, and the cursor after them.

    `size` counts the rows of all ranks, `rows` those of this one. `position` is that of the epoch's end, as far as it
    is read, where nothing of the epoch is left.
    """

    epoch: int
    position: int
    size: int
    rows: int
    cursor: Cursor
    spans: tuple[Span, ...]


class DataProgress:
    """The same on every rank. `data` is the job's, cut into batches of the size that is in use."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.cursor = data.start
        self.skipped: tuple[Span, ...] = ()
        self._drawn: PendingBatches | None = None
        self._steps: dict[int, tuple[Span, ...]] = {}

    def batches(self, loader: Loader) -> Iterator[Batch]:
        """What `loader` has left of its epoch, but for what is skipped."""
        for batch in loader:
            if self._is_skipped((batch.epoch, batch.position, batch.position + batch.size)):
                continue
            self._draw(batch, loader.cursor())
            yield batch

    def take(self, step: int) -> PendingBatches:
        """What was drawn since the last commit, which becomes `step`. Raises `BadJob` if that is nothing."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            raise BadJob("commit() was called without a new batch. Call it once per step of `worker.loader()`.")
        self.cursor = replace(drawn.cursor, global_batch=self.data.global_batch)
        self._steps[step] = drawn.spans
        return drawn

    def forget_drawn(self) -> None:
        """What was drawn and not committed is drawn again."""
        self._drawn = None

    def check_committed(self) -> None:
        """Raises `BadJob` where an epoch has ended and its last batches were not committed."""
        if self._drawn is not None:
            raise BadJob(
                f"epoch {self._drawn.epoch} ended without a commit. Call worker.commit() after every optimizer.step(): "
                "it counts the steps and saves the run.",
                epoch=self._drawn.epoch,
            )

    def saved(self) -> None:
        """Nothing before the cursor will be trained again."""
        self._steps.clear()
        # A loader may still have the skipped end of the last epoch before it.
        self.skipped = tuple(span for span in self.skipped if span[0] >= self.cursor.epoch - 1)

    def go_to(self, cursor: Cursor, skipped: tuple[Span, ...]) -> None:
        """Stand where `cursor` says; what was skipped before stays so."""
        self.skipped = tuple(dict.fromkeys((*skipped, *self.skipped)))
        self.cursor = cursor
        self._drawn = None
        self._steps.clear()

    def skip(self, step: int | None) -> int:
        """Pass over what `step` was trained on, or all since the last saved commit for None; returns the rows."""
        spans = [span for at, spans in self._steps.items() if step in (None, at) for span in spans]
        self.skipped = (*self.skipped, *spans)
        return sum(stop - start for _, start, stop in spans)

    def cut(self, global_batch: int) -> None:
        """Use batches of another size from the cursor on.

        A size of which no batch is left in this epoch (with `last="drop"`) has to wait: an epoch ends with a batch.
        Raises `InvalidOption` for a size that leaves nothing to train on.
        """
        data = self.data
        if global_batch != data.global_batch:
            cut = replace(data, global_batch=global_batch)
            if cut.plan.num_batches(global_batch, self.cursor.position, last=cut.last):
                self.data = cut
        self.cursor = replace(self.cursor, global_batch=self.data.global_batch)

    def end_of_skipped_epoch(self) -> int | None:
        """Where the epoch ends, if all that is left of it is skipped."""
        position = self._past_skipped(self.cursor)
        return None if self._size(position) else position

    def begin_next_epoch(self) -> int:
        """Leave what is left of this one, whose number is returned."""
        epoch = self.cursor.epoch
        self.cursor = replace(self.cursor, epoch=epoch + 1, position=0)
        return epoch

    def _draw(self, batch: Batch, cursor: Cursor) -> None:
        before = self._drawn
        end = batch.position + batch.size
        if self.skipped and cursor.epoch == batch.epoch:
            end = self._past_skipped(cursor)
            if not self._size(end):
                batch.ends_epoch, cursor = True, replace(cursor, epoch=batch.epoch + 1, position=0)
            else:
                end = batch.position + batch.size
        self._drawn = PendingBatches(
            epoch=batch.epoch,
            position=end,
            size=batch.size + (before.size if before else 0),
            rows=batch.rows + (before.rows if before else 0),
            cursor=cursor,
            spans=(*(before.spans if before else ()), (batch.epoch, batch.position, batch.position + batch.size)),
        )

    def _past_skipped(self, cursor: Cursor) -> int:
        """The position of the next batch that is not skipped, or the end of the epoch."""
        position = cursor.position
        while size := self._size(position):
            if not self._is_skipped((cursor.epoch, position, position + size)):
                break
            position += size
        return position

    def _size(self, position: int) -> int:
        return self.data.plan.batch_size(position, self.data.global_batch, last=self.data.last)

    def _is_skipped(self, batch: Span) -> bool:
        epoch, start, stop = batch
        return any(at == epoch and start < end and begin < stop for at, begin, end in self.skipped)
