"""Progress of a run through its data.

Committed rows, batches drawn since, and rows to skip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.plan.cursor import Cursor
from forebay.errors import BadJob

Span = tuple[int, int, int]
"""Rows of one epoch: (epoch, first position, position after the last)."""


def num_rows(spans: Sequence[Span]) -> int:
    """Number of rows of `spans`."""
    return sum(stop - start for _, start, stop in spans)


class CursoredBatches(Protocol):
    """Batches with the position of the next, as in `Loader`."""

    def __iter__(self) -> Iterator[Batch]: ...

    def cursor(self) -> Cursor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatches:
    """Batches drawn since the last commit.

    `size` counts the rows of all ranks, `rows` this rank's. If nothing of the epoch is left, `position` is the
    end of the part that is read.
    """

    epoch: int
    position: int
    size: int
    rows: int
    cursor: Cursor
    spans: tuple[Span, ...]


class DataProgress:
    """Cursor, skipped rows and pending batches, equal on every rank.

    `data` has the current global batch.
    """

    def __init__(self, data: Data) -> None:
        self.data = data
        self.cursor = data.start
        self.skipped: tuple[Span, ...] = ()
        self._pending: PendingBatches | None = None
        self._steps: dict[int, tuple[Span, ...]] = {}

    def batches(self, loader: CursoredBatches) -> Iterator[Batch]:
        """Yield the rest of `loader`'s epoch, without skipped batches."""
        for batch in loader:
            if self._is_skipped((batch.epoch, batch.position, batch.position + batch.size)):
                continue
            self._add_pending(batch, loader.cursor())
            yield batch

    def pop_pending(self, step: int) -> PendingBatches:
        """Commit the batches drawn so far as `step`.

        Raises `BadJob` if there are none.
        """
        drawn, self._pending = self._pending, None
        if drawn is None:
            raise BadJob("commit() was called without a new batch. Call it once per step of `worker.loader()`.")
        self.cursor = replace(drawn.cursor, global_batch=self.data.global_batch)
        self._steps[step] = drawn.spans
        return drawn

    @property
    def ends_epoch(self) -> bool:
        """Whether the uncommitted batches end their epoch."""
        return self._pending is not None and self._pending.cursor.epoch > self._pending.epoch

    def share_of(self, epochs: int) -> float:
        """Share of the rows of `epochs` epochs before the cursor."""
        return (self.cursor.epoch + self.cursor.position / self.data.plan.num_rows) / epochs

    def discard_pending(self) -> None:
        """Discard uncommitted batches. They are drawn again."""
        self._pending = None

    def require_committed(self) -> None:
        """Check that an ended epoch was committed to its end.

        Raises `BadJob` otherwise.
        """
        if self._pending is not None:
            raise BadJob(
                f"epoch {self._pending.epoch} ended without a commit. Call worker.commit() after every "
                "optimizer.step(): it counts the steps and saves the run.",
                epoch=self._pending.epoch,
            )

    def mark_saved(self) -> None:
        """Discard the steps before the cursor: a checkpoint has them."""
        self._steps.clear()
        # A loader may not yet have passed the skipped end of the last epoch.
        self.skipped = tuple(span for span in self.skipped if span[0] >= self.cursor.epoch - 1)

    def restore(self, cursor: Cursor, skipped: tuple[Span, ...]) -> None:
        """Return to `cursor`. Rows that were skipped before stay skipped."""
        self.skipped = tuple(dict.fromkeys((*skipped, *self.skipped)))
        self.cursor = cursor
        self._pending = None
        self._steps.clear()

    def spans_of(self, step: int | None) -> tuple[Span, ...]:
        """Return the rows of `step`.

        None: of all steps since the last checkpoint.
        """
        return tuple(span for at, spans in self._steps.items() if step in (None, at) for span in spans)

    def skip(self, step: int | None) -> tuple[Span, ...]:
        """Skip the rows of `step`.

        None: of all steps since the last checkpoint.

        Returns them.
        """
        spans = self.spans_of(step)
        self.skipped = (*self.skipped, *spans)
        return spans

    def set_global_batch(self, global_batch: int) -> None:
        """Use batches of `global_batch` rows from the cursor on.

        With `last="drop"`, the rest of this epoch may be too small for one. Then the size changes at the next epoch.
        Raises `InvalidOption` for a size that leaves nothing to train on.
        """
        data = self.data
        if global_batch != data.global_batch:
            resized = replace(data, global_batch=global_batch)
            if resized.plan.num_batches(global_batch, self.cursor.position, last=resized.last):
                self.data = resized
        self.cursor = replace(self.cursor, global_batch=self.data.global_batch)

    def end_of_skipped_epoch(self) -> int | None:
        """Return the epoch's end if its rest is skipped.

        None otherwise.
        """
        position = self._past_skipped(self.cursor)
        return None if self._size(position) else position

    def start_next_epoch(self) -> int:
        """Move the cursor to the next epoch.

        Returns the number of the epoch it leaves.
        """
        epoch = self.cursor.epoch
        self.cursor = replace(self.cursor, epoch=epoch + 1, position=0)
        return epoch

    def _add_pending(self, batch: Batch, cursor: Cursor) -> None:
        before = self._pending
        end = batch.position + batch.size
        if self.skipped and cursor.epoch == batch.epoch:
            end = self._past_skipped(cursor)
            if not self._size(end):
                batch.ends_epoch, cursor = True, replace(cursor, epoch=batch.epoch + 1, position=0)
            else:
                end = batch.position + batch.size
        self._pending = PendingBatches(
            epoch=batch.epoch,
            position=end,
            size=batch.size + (before.size if before else 0),
            rows=batch.num_rows + (before.rows if before else 0),
            cursor=cursor,
            spans=(*(before.spans if before else ()), (batch.epoch, batch.position, batch.position + batch.size)),
        )

    def _past_skipped(self, cursor: Cursor) -> int:
        """Return the position of the next batch to train.

        The end of the epoch if all others are skipped.
        """
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
